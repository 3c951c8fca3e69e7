"use strict";
// Draws every figure from the record beside it; a legend's button hides its line.
(() => {
  const touch = matchMedia("(pointer: coarse)").matches;
  const config = { responsive: true, displayModeBar: false, displaylogo: false, topojsonURL: "" };
  const drawn = [];
  for (const chart of document.querySelectorAll(".chart")) {
    const figure = JSON.parse(chart.parentElement.querySelector("script").textContent);
    if (touch) figure.layout.dragmode = false; // a finger scrolls the page
    drawn.push(Plotly.newPlot(chart, figure.data, figure.layout, config));
  }
  for (const button of document.querySelectorAll(".legend button")) {
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") === "false";
      const chart = button.closest("figure").querySelector(".chart");
      button.setAttribute("aria-pressed", String(shown));
      Plotly.restyle(chart, { visible: shown }, [Number(button.dataset.trace)]);
    });
  }
  const resize = () => document.querySelectorAll(".chart").forEach((chart) => Plotly.Plots.resize(chart));
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((one) => one.setAttribute("open", ""));
    resize();
  });
  addEventListener("afterprint", resize);
  Promise.all(drawn).then(() => document.documentElement.setAttribute("data-drawn", drawn.length));
})();
