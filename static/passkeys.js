// What the browser or the key refuses is shown on the page: allauth's script writes it to the console.
const WORDS = {
  NotAllowedError: "The browser got no passkey: it was cancelled, took too long, or there is none for this address.",
  InvalidStateError: "This key is added already.",
  SecurityError: "Browsers use passkeys only over HTTPS, or on localhost: not on an IP address.",
};

document.addEventListener("allauth.error", (event) => {
  const place = document.getElementById("passkey_error");
  const error = event.detail.exception;
  if (!place) return;
  event.preventDefault();
  place.textContent = WORDS[error.name] || `No passkey was used: ${error.message}`;
  place.hidden = false;
});
