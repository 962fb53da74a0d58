// Not a module: it runs before anything is drawn, so that no page flashes in the wrong colours.
(() => {
  let chosen = "auto";
  try {
    chosen = localStorage.getItem("rankwell-theme") ?? "auto";
  } catch { /* storage may be forbidden; then the system's colours stand */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
