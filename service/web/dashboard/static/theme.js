// Loaded before anything is drawn, so that the chosen theme is there from the first picture on.
(function () {
  "use strict";
  const KEY = "dpledger-theme";
  const THEMES = ["auto", "light", "dark"];
  const NAMES = { auto: "Auto", light: "Light", dark: "Dark" };
  const root = document.documentElement;

  function chosen() {
    try {
      const kept = localStorage.getItem(KEY);
      return THEMES.includes(kept) ? kept : "auto";
    } catch (error) { // storage may be forbidden
      return "auto";
    }
  }

  function apply(theme) {
    if (theme === "auto") root.removeAttribute("data-theme");
    else root.setAttribute("data-theme", theme);
  }

  apply(chosen());

  function keep(theme) {
    try {
      if (theme === "auto") localStorage.removeItem(KEY);
      else localStorage.setItem(KEY, theme);
    } catch (error) { // it lasts as long as the page, then
    }
    apply(theme);
    // Charts take their colours from the page, and must draw themselves anew.
    document.dispatchEvent(new CustomEvent("themechange"));
  }

  function installSwitch() {
    const button = document.querySelector("[data-theme-switch]");
    if (!button) return;
    const name = button.querySelector("[data-theme-name]");
    let theme = chosen();
    function show() {
      name.textContent = NAMES[theme];
      button.setAttribute("aria-label", "Colour theme: " + NAMES[theme]);
    }
    button.hidden = false;
    show();
    button.addEventListener("click", function () {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
      keep(theme);
      show();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () {
      document.dispatchEvent(new CustomEvent("themechange"));
    });
  }

  function installCopying() {
    if (!navigator.clipboard) return;
    document.querySelectorAll("[data-copy]").forEach(function (button) {
      button.hidden = false;
    });
    document.addEventListener("click", function (event) {
      const button = event.target.closest("[data-copy]");
      if (!button) return;
      const text = button.parentElement.querySelector("code").textContent;
      const label = button.textContent;
      navigator.clipboard.writeText(text).then(function () {
        button.textContent = "Copied";
        setTimeout(function () { button.textContent = label; }, 1600);
      });
    });
  }

  document.addEventListener("DOMContentLoaded", function () {
    installSwitch();
    installCopying();
  });
})();
