// The theme makes the copy button of each block of code a landmark; a page of thirty of them has thirty.
new MutationObserver(() => {
  for (const nav of document.querySelectorAll("nav.md-code__nav:not([role])")) nav.setAttribute("role", "presentation");
  for (const button of document.querySelectorAll("button.md-code__button:not([aria-label])")) {
    button.setAttribute("aria-label", button.title);
  }
  // Wide tables scroll sideways on a phone: the keyboard must reach them, too.
  for (const wide of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) wide.tabIndex = 0;
}).observe(document.documentElement, { childList: true, subtree: true });
