// Keeps the runs that are ticked in a list while one goes through its pages: in the addresses of its
// links, and in its search. Without this script each page has its own.
(function () {
  "use strict";

  function chosen(form) {
    const ticked = Array.from(form.querySelectorAll('input[name="runs"]')).filter(function (one) {
      return one.type === "hidden" || one.checked;
    });
    return ticked.map(function (one) { return one.value; });
  }

  function keep(form) {
    const names = chosen(form);
    document.querySelectorAll("main a[href^='/runs?'], main a[href='/runs']").forEach(function (link) {
      const address = new URL(link.href);
      address.searchParams.delete("runs");
      names.forEach(function (name) { address.searchParams.append("runs", name); });
      link.setAttribute("href", address.pathname + address.search);
    });
    const search = document.querySelector("form[role=search]");
    search.querySelectorAll('input[name="runs"]').forEach(function (one) { one.remove(); });
    names.forEach(function (name) {
      const field = document.createElement("input");
      field.type = "hidden";
      field.name = "runs";
      field.value = name;
      search.append(field);
    });
  }

  document.addEventListener("DOMContentLoaded", function () {
    document.querySelectorAll("form[data-ticks]").forEach(function (form) {
      form.addEventListener("change", function () { keep(form); });
    });
  });
})();
