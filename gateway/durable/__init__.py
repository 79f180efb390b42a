"""Answers that outlive their connection: kept for 24 hours under a key, made once, charged once, read by many.

How an endpoint uses it:

- A POST declared by `@endpoint` (`gateway/http/endpoint.py`) heeds ``Idempotency-Key`` and ``Last-Event-ID`` already.
- To keep an answer for another reason (stored, in the background), await `runtime.replays.answer(DurableRequest(Claim(
  tenant, NAME, digest), run, endpoint, scope, body, grace=None))` with a NAME such as ``response:…`` (clients' keys are
  ``key:…``), and write what it returns with `http.durable.write_answer`, or read its log by yourself
  (`EventLog.read(after)`, `whole()`), inside `async with answer.reading()`.
- Inside an endpoint `delivering.get()` is the `Delivery` of the kept answer, None on the direct path; what is appended
  to its `also` is called in the transaction that stores the answer, before anything is charged.
- `keeper.leave(refusal)` ends a run early, as if its client had left; with `grace=None` it goes on without readers.
- A stream's events are numbered from 0 on, in the order in which the endpoint sends them (a restarted run's from 10⁹).

`answers` are the rows, `log` the events, `keeper` one run, `replays` all of this process, `delivery` what generations
see of it.
"""
