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

// The chart of the front page: the console's own samples, drawn anew every 5 seconds.
const place = document.getElementById("chart");
if (place && window.uPlot) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
  const width = () => Math.max(320, Math.min(1100, place.clientWidth));
  const line = (label, name) => ({ label, stroke: colour(name), width: 2, spanGaps: false });
  const chart = new uPlot({
    width: width(), height: 180, scales: { x: { range: (_, low, high) => [Math.min(low, high - 120), high] }, y: { range: (_, low, high) => [0, Math.max(1, high || 1)] } },
    axes: [axis, { ...axis, size: 60 }],
    series: [{}, line("stored", "--link"), line("handed out", "--well")],
  }, [[], [], []], place);
  const draw = async () => {
    const answer = await fetch(place.dataset.rates, { headers: { "HX-Request": "true" } });
    if (answer.ok) {
      const rates = await answer.json();
      chart.setData([rates.at, rates.stored, rates.handed_out]);
    }
  };
  addEventListener("resize", () => chart.setSize({ width: width(), height: 180 }));
  const again = () => draw().catch(() => {});
  again();
  setInterval(again, 5000);
}
