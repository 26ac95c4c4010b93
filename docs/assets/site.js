// The theme makes the copy button of each block of code a landmark; a page of thirty of them has thirty.
new MutationObserver(() => {
  for (const nav of document.querySelectorAll("nav.md-code__nav:not([role])")) nav.setAttribute("role", "presentation");
  for (const button of document.querySelectorAll("button.md-code__button:not([aria-label])")) {
    button.setAttribute("aria-label", button.title);
  }
}).observe(document.documentElement, { childList: true, subtree: true });
