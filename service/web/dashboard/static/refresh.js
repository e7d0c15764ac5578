// Looks again, now and then, at a part of a page that is open: <div id="..." data-refresh="20">.
// The server renders it as for the first time; nothing is worked out here. A part that came from an
// address of its own names that in data-from.
(function () {
  "use strict";

  function isInUse(part) {
    if (part.contains(document.activeElement) || part.querySelector("details[open]")) return true;
    const selection = document.getSelection();
    return Boolean(selection && !selection.isCollapsed && part.contains(selection.anchorNode));
  }

  async function lookAgain(part) {
    if (document.hidden || isInUse(part)) return;
    let answer;
    try {
      answer = await fetch(part.dataset.from || location.href, { credentials: "same-origin", cache: "no-store" });
    } catch (error) { // the service does not answer now; what is shown says when it was read
      return;
    }
    if (answer.redirected) { // the session has ended
      location.reload();
      return;
    }
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = part.dataset.from ? page.body : page.getElementById(part.id);
    if (fresh && !isInUse(part)) part.replaceChildren(...fresh.childNodes);
  }

  document.addEventListener("DOMContentLoaded", function () {
    document.querySelectorAll("[data-refresh][id]").forEach(function (part) {
      setInterval(lookAgain, 1000 * Number(part.dataset.refresh), part);
      document.addEventListener("visibilitychange", function () { lookAgain(part); });
    });
  });
})();
