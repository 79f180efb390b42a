"""Requests of five tasks in words that no rule's example has, for measuring how often `auto` finds the task.

Each task has two sets of templates that share none: "choice" was used to choose the examples, the least similarity and
what of a request is compared; "held-out" only to measure. `tests/routing/test_held_out.py` compares both with
each other and with the examples that a fresh installation has.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

TASKS = ("classify", "extract", "summarize", "chat", "code")


@dataclass(frozen=True)
class Request:
    """A request with the task that it is for; `system` is empty where the user's message says what to do."""

    task: str
    system: str
    user: str

    @property
    def messages(self) -> list[dict[str, str]]:
        """The request's messages as Chat Completions takes them."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.user}]


# -- what requests are about ------------------------------------------------------------------------------------------

TICKETS = (
    (
        "Hi, I was charged twice for my subscription this month. My account is under {name}, invoice "
        "{number}. Please sort this out quickly."
    ),
    ("The blender I bought on {day} stopped working after two days. Order {number}. I would like my money back."),
    ("I can't log in since the update. It keeps saying that my password is wrong, but it isn't. Regards, {name}"),
    "Where is my package? Tracking {number} hasn't moved since {day}. I needed it for a birthday!",
    ("Hello, could you please change the delivery address of order {number} to 12 Mill Lane, Leeds? Thanks, {name}"),
    "Your app crashes each time I open the settings page on my tablet. Very annoying.",
    ("I just wanted to say that the agent who helped me on {day} was wonderful. Best service in years. {name}"),
    "Do you ship to Norway, and how long would it take? I am thinking of ordering three of the lamps.",
    ("Cancel my plan at the end of the month, please, and confirm in writing. Customer number {number}, {name}."),
    ("The invoice {number} lists 19% tax, but we are a charity and exempt. Kindly send a corrected one by {day}."),
)
ARTICLES = (
    (
        "The city council voted on {day} to close the old bridge for repairs that are expected to take "
        "eighteen months. Engineers found cracks in four of the nine pillars. Traffic will be led over the "
        "northern ring road, and two extra bus lines will run at rush hour. Shop owners in the old town fear "
        "that they will lose customers, and ask for help."
    ),
    (
        "Researchers have shown that a common soil bacterium can break down a plastic that was thought to "
        "last for centuries. In the laboratory a film lost half of its weight in six weeks. The team around "
        "{name} warns that it is too early to speak of a solution, since the process needs warmth and "
        "moisture, and stops below ten degrees."
    ),
    (
        "In the third quarter revenue rose by seven per cent to 48 million, while costs grew by eleven per "
        "cent because of higher prices for energy. The margin fell to 14 per cent. Management keeps its "
        "outlook for the year, has stopped hiring, and plans to sell the warehouse in Riga. The shares lost "
        "three per cent on {day}."
    ),
    (
        "Anna: The launch slips by a week. {name}: Because of the payment tests? Anna: Yes, two of them fail "
        "on old phones. {name}: Then we fix those first and tell marketing today. Anna: I'll write to them; "
        "you take the tests. We meet again on {day} at ten."
    ),
    (
        "The novel follows a lighthouse keeper who finds a diary in the wall of his kitchen. The more he "
        "reads the less he trusts his own memory. When a storm cuts the island off he begins to write answers "
        "into the margins, and one morning finds a reply to them in another hand."
    ),
)
PROGRAMS = (
    "def mean(values):\n    total = 0\n    for v in values:\n        total += v\n    return total / len(value)",
    "for (let i = 0; i <= items.length; i++) {\n  console.log(items[i].name);\n}",
    "SELECT c.name, SUM(o.total) FROM customers c JOIN orders o ON o.customer = c.id;",
    "class Stack:\n    items = []\n    def push(self, x):\n        self.items.append(x)",
    "int *make(int n) {\n    int a[n];\n    return a;\n}",
)
NAMES = ("Maria Keller", "Tom Okafor", "Yuki Tanaka", "Lena Novak", "Peter Brandt", "Aisha Rahman", "Juan Ortiz")
DAYS = ("Monday", "3 March", "last Friday", "12 August", "Tuesday", "the 21st", "2 May")
PLACES = ("Porto", "Kyoto", "Krakow", "Vancouver", "Marrakesh", "Oslo", "Naples")
LANGUAGES = ("Python", "Go", "TypeScript", "Java", "Kotlin", "C#", "Ruby")

# -- what is asked ----------------------------------------------------------------------------------------------------
# A pair is (system, user); a single text is the user's. {ticket}, {article} and {program} are drawn from above.

CHOICE: dict[str, tuple[str | tuple[str, str], ...]] = {
    "classify": (
        "Put this message into a bucket (refund, delivery, login, praise):\n\n{ticket}",
        "Is the writer of this angry, calm or happy? One word.\n\n{ticket}",
        "Team for this one? hardware / software / accounts\n{ticket}",
        ("Choose the topic of each customer message from the list: payment, product, app, other.", "{ticket}"),
        "{ticket}\n\nIs that a complaint: true or false?",
    ),
    "extract": (
        "What's the order id in here?\n\n{ticket}",
        "Make a JSON object with name, number and date out of this mail:\n{ticket}",
        "{article}\n\nList all numbers in that text with what they stand for.",
        ("Output JSON with the keys customer, reference and wish. Missing ones are null.", "{ticket}"),
        "Who is named in this text? Names only.\n\n{article}",
    ),
    "summarize": (
        "Too long for me. Short version?\n\n{article}",
        "{article}\n\nWrite two sentences that say what that was about.",
        "Reduce the following to its essence:\n{article}",
        ("Write a headline and one line for each text.", "{article}"),
        "Bullet points of this, please:\n\n{article}",
    ),
    "chat": (
        "Hey, what's up?",
        "I am going to {place} in spring, what should I see there?",
        "Do you know a riddle for children?",
        "What's the difference between weather and climate?",
        "My neighbour is loud at night. How can I tell {name} kindly?",
    ),
    "code": (
        "How would I sort a dictionary by value in {language}?",
        "What's wrong here?\n\n{program}",
        "Give me a {language} snippet that downloads a file.",
        ("You help developers with their programs.", "{program}\n\nMake this more readable."),
        "Which data structure is right for a priority queue in {language}?",
    ),
}
HELD_OUT: dict[str, tuple[str | tuple[str, str], ...]] = {
    "classify": (
        "Pick the right queue for the ticket: returns, payments, access or general.\n\n{ticket}",
        "{ticket}\n\n---\nWhat type of inquiry is the above? (bug / question / order change / thanks)",
        "Mood of the customer? good, bad or mixed:\n{ticket}",
        "Sort the mail into one folder: Urgent, Normal, Ignore.\n\n{ticket}",
        "Does the following belong to Sales or to Technical Service?\n\n{ticket}",
        "Answer with a single word, refund or exchange or neither: {ticket}",
        "Determine the reason for contact. Allowed values: BILLING, DELIVERY, DEFECT, ACCOUNT, PRAISE.\n\n{ticket}",
        "On a scale of minor, major and blocker, how severe is this report?\n{ticket}",
        "Give this message a tag out of #cancel #address #login #invoice.\n\n{ticket}",
        "Should a human look at this at once (yes/no)?\n\n{ticket}",
        ("Assign every incoming mail to a team. Teams: Logistics, Finance, IT. Output the team's name.", "{ticket}"),
        ("You triage. Output P1, P2 or P3 and nothing else.", "{ticket}"),
        ("Sentiment analysis: respond with POS, NEG or NEU.", "{ticket}"),
        "Subject area of the passage: politics, science, business or fiction?\n\n{article}",
        "Which genre is this text, news or prose?\n\n{article}",
        "Mark as fraud or legitimate: {ticket}",
    ),
    "extract": (
        "Get the invoice or order reference from this mail and nothing else.\n\n{ticket}",
        '{ticket}\n\nReply as {{"customer": ..., "number": ..., "day": ...}}.',
        "I need sender, reference number and date of the following as a table:\n{ticket}",
        "Name the article that this customer bought.\n\n{ticket}",
        "Write down each date that is mentioned below.\n\n{article}",
        "Which percentages occur in this text, and of what?\n\n{article}",
        "Collect all proper nouns from the passage.\n\n{article}",
        "Convert this mail to key: value lines (who, when, which number).\n\n{ticket}",
        "What street, town and person does this message contain?\n\n{ticket}",
        "Retrieve the tracking or customer number:\n\n{ticket}",
        ("Return JSON only: {{name, number, day, product}}. Use null for what the mail doesn't have.", "{ticket}"),
        ("You are a parser. From each message output its identifiers, one per line.", "{ticket}"),
        (
            "Populate the CRM fields contact_name, case_reference, requested_action from the customer's mail.",
            "{ticket}",
        ),
        "Entities (PERSON, DATE, NUMBER) in: {article}",
        "Read off who said what will be done by when.\n\n{article}",
        "From the lines below, produce a CSV with the columns person and date.\n\n{ticket}",
    ),
    "summarize": (
        "Could you make this shorter? About forty words.\n\n{article}",
        "{article}\n\nWhat's the gist of it?",
        "Explain in a nutshell what this piece says.\n\n{article}",
        "I have one minute. What do I have to know from this?\n\n{article}",
        "Compress the text to a single paragraph for the newsletter:\n{article}",
        "Key takeaways, as a list of three:\n\n{article}",
        "Please write the minutes in brief from this chat:\n\n{article}",
        "Tell me the plot or content below without the details.\n\n{article}",
        "Draft a blurb of the following for the back cover.\n\n{article}",
        "What are the most important facts in this text?\n\n{article}",
        ("Every text that you get you render in no more than two plain sentences.", "{article}"),
        ("You write the short version of news for busy readers.", "{article}"),
        ("Produce a synopsis of what the user pastes.", "{article}"),
        "Outline of the following, briefly:\n{article}",
        "Cut this down to a third of its length:\n\n{article}",
        "Brief me on this:\n\n{article}",
    ),
    "chat": (
        "Good morning! Slept well?",
        "Is {place} worth a visit in November?",
        "Which museum should I go to in {place} with two small kids?",
        "I'm bored. Entertain me!",
        "How come the moon looks bigger at the horizon?",
        "Write a short toast for the wedding of my friend {name}.",
        "What can I bring to a dinner with vegetarians?",
        "Who painted the Mona Lisa, and when?",
        "I had a fight with my best friend {name} and don't know what to do.",
        "Suggest a film for a rainy Sunday.",
        "Is it better to run in the morning or in the evening?",
        "What does the proverb about glass houses mean?",
        ("You are a friendly companion for everyday talk.", "I moved to {place} last week and know nobody here."),
        ("You are a helpful assistant.", "How do I get red wine out of a carpet?"),
        "Let's play twenty questions!",
        "How far is it from {place} to London?",
    ),
    "code": (
        "Show me how to parse command line arguments in {language}.",
        "This prints undefined at the end, why?\n\n{program}",
        "{program}\n\nSpot the mistake.",
        "I need a {language} method that checks whether a string is a palindrome.",
        "Port this to {language}:\n\n{program}",
        "What does this do?\n\n{program}",
        "How do I mock an HTTP client in {language} tests?",
        "Give me a {language} program that counts words in a text file.",
        "Review this pull request for me:\n\n{program}",
        "What's the idiomatic way to handle exceptions in {language}?",
        ("You are a senior engineer who reviews code.", "{program}"),
        ("Answer as a {language} expert, code first.", "How can I run two tasks at the same time?"),
        "Set up a REST endpoint in {language} that returns the time.",
        "My {language} build fails with a dependency conflict, how do I resolve that?",
        "Document this function:\n\n{program}",
        "git says that my branch has diverged. Which commands do I need?",
    ),
}


def requests(split: dict[str, tuple[str | tuple[str, str], ...]], count: int, seed: int = 1) -> list[Request]:
    """Return `count` requests, the tasks in turn and each of their templates equally often, as the seed fills them."""
    random = Random(seed)
    made = []
    for number in range(count):
        task = TASKS[number % len(TASKS)]
        templates = split[task]
        template = templates[number // len(TASKS) % len(templates)]
        system, user = template if isinstance(template, tuple) else ("", template)
        filled = {
            "name": random.choice(NAMES),
            "day": random.choice(DAYS),
            "number": f"{random.choice('ABCDEFGH')}{random.randrange(10_000, 99_999)}",
            "place": random.choice(PLACES),
            "language": random.choice(LANGUAGES),
            "program": random.choice(PROGRAMS),
        }
        filled["ticket"] = random.choice(TICKETS).format(**filled)
        filled["article"] = random.choice(ARTICLES).format(**filled)
        made.append(Request(task, system.format(**filled), user.format(**filled)))
    return made
