// `/` goes to the filter, as in many lists; Escape leaves it.
document.addEventListener("keydown", (pressed) => {
  const filter = document.getElementById("filter");
  const typing = pressed.target.closest("input, textarea, select");
  if (pressed.key === "/" && filter && !typing && !pressed.ctrlKey && !pressed.metaKey) {
    pressed.preventDefault();
    filter.focus();
    filter.select();
  } else if (pressed.key === "Escape" && pressed.target === filter) {
    filter.blur();
  }
});
