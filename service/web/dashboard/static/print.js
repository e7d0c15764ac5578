// The button that prints; without a script, the browser's own menu does.
document.addEventListener("DOMContentLoaded", function () {
  "use strict";
  document.querySelectorAll("[data-print]").forEach(function (button) {
    button.hidden = false;
    button.addEventListener("click", function () { window.print(); });
  });
});
