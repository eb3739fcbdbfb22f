// A toggle is called what it shows, not "Toggle hidden content" (WCAG 2.1, 2.5.3).
document.addEventListener("DOMContentLoaded", () =>
  document.querySelectorAll("details.hide > summary").forEach(s => s.removeAttribute("aria-label")));

// Paper is light.
(() => {
  const root = document.documentElement;
  let shown;
  addEventListener("beforeprint", () => { shown = root.dataset.theme; root.dataset.theme = "light"; });
  addEventListener("afterprint", () => { root.dataset.theme = shown; });
})();
