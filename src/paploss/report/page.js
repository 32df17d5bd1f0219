"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const touch = matchMedia("(pointer: coarse)").matches;
  const wishesDark = matchMedia("(prefers-color-scheme: dark)");
  const themeButton = document.getElementById("theme");

  // ---------------------------------------------------------------- theme

  const themed = () => {
    const style = getComputedStyle(root);
    const value = name => style.getPropertyValue(name).trim();
    const axis = { gridcolor: value("--line"), zerolinecolor: value("--line"), linecolor: value("--line") };
    return { text: value("--ink"), soft: value("--soft"), card: value("--card"), axis };
  };

  const showTheme = dark => {
    root.dataset.theme = dark ? "dark" : "light";
    themeButton.setAttribute("aria-pressed", String(dark));
    themeButton.textContent = dark ? "Light" : "Dark";
    const colours = themed();
    for (const plot of document.querySelectorAll(".plot.js-plotly-plot")) {
      const change = { "font.color": colours.text, "hoverlabel.bgcolor": colours.card };
      for (const axis of ["xaxis", "yaxis"]) {
        for (const [name, colour] of Object.entries(colours.axis)) change[`${axis}.${name}`] = colour;
      }
      Plotly.relayout(plot, change);
    }
  };

  showTheme(wishesDark.matches);
  wishesDark.addEventListener("change", event => showTheme(event.matches));
  themeButton.addEventListener("click", () => showTheme(root.dataset.theme !== "dark"));

  // ---------------------------------------------------------------- tables

  const cellValue = (row, column) => {
    const cell = row.cells[column];
    const number = parseFloat(cell.dataset.value);
    return cell.dataset.value !== undefined && !Number.isNaN(number) ? number : cell.textContent.trim();
  };

  const compare = (a, b) => typeof a === "number" && typeof b === "number"
    ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
      const body = table.tBodies[0];
      const rows = [...body.rows];
      const numeric = rows.every(row => typeof cellValue(row, column) === "number");
      const before = head.getAttribute("aria-sort");
      // Figures are looked at from the top: the largest come first.
      const falling = before ? before === "ascending" : numeric;
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      rows.sort((a, b) => (falling ? -1 : 1) * compare(cellValue(a, column), cellValue(b, column)));
      body.append(...rows);
    }));
    markBest(table);
  }

  function markBest(table) {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < 2) return;
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (!/^(A[PR]|ρ)/.test(head.textContent.trim())) return;
      const best = Math.max(...rows.map(row => cellValue(row, column)));
      if (best > 0) rows.forEach(row => row.cells[column].classList.toggle("best", cellValue(row, column) === best));
    });
  }

  // ---------------------------------------------------------------- figures

  const unpack = async text => {
    const bytes = Uint8Array.from(atob(text), character => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };

  const layoutOf = layout => {
    const colours = themed();
    const axis = own => ({ ...colours.axis, fixedrange: touch, ...own });
    return {
      ...layout,
      xaxis: axis(layout.xaxis),
      yaxis: axis(layout.yaxis),
      margin: { l: 48, r: 10, t: 8, b: 40 },
      showlegend: false,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: colours.text },
      hoverlabel: { bgcolor: colours.card, namelength: 40 },
      dragmode: touch ? false : "zoom",
      bargap: 0.25,
    };
  };

  const options = {
    responsive: true,
    displaylogo: false,
    displayModeBar: touch ? false : "hover",
    modeBarButtons: [["toImage", "resetScale2d"]],
    showSendToCloud: false,
  };

  const drawFigure = async element => {
    const figure = figures[element.dataset.figure];
    const plots = [...element.querySelectorAll(".plot")];
    for (const [place, plot] of plots.entries()) {
      const { data, layout } = figure.panels[place];
      await Plotly.newPlot(plot, data, layoutOf(layout), options);
    }
    connectLegend(element, plots);
    connectSlider(element, plots, figure.frames);
  };

  function connectLegend(element, plots) {
    for (const button of element.querySelectorAll(".legend button")) {
      const name = button.querySelector("span").textContent;
      const escaped = name.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
      button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(shown));
        for (const plot of plots) {
          const own = plot.data.flatMap((trace, index) => trace.name === escaped ? [index] : []);
          if (own.length) Plotly.restyle(plot, { visible: shown }, own);
        }
      });
    }
  }

  function connectSlider(element, plots, frames) {
    const input = element.querySelector(".slider input");
    if (!input) return;
    const output = element.querySelector(".slider output");
    const play = element.querySelector(".slider .play");
    const show = () => {
      const frame = frames[Number(input.value)];
      output.textContent = frame.label;
      input.setAttribute("aria-valuetext", frame.label);
      plots.forEach((plot, place) =>
        Plotly.restyle(plot, { x: [frame.points[place].x], y: [frame.points[place].y] }, [0]));
    };
    input.addEventListener("input", show);
    let timer = null;
    const stop = () => { clearInterval(timer); timer = null; play.textContent = "▶"; play.setAttribute("aria-label", "Play"); };
    play.addEventListener("click", () => {
      if (timer !== null) return stop();
      if (input.value === input.max) input.value = input.min;
      show();
      play.textContent = "❚❚";
      play.setAttribute("aria-label", "Pause");
      timer = setInterval(() => {
        if (input.value === input.max) return stop();
        input.value = Number(input.value) + 1;
        show();
      }, 600);
    });
  }

  const drawAll = async () => {
    const source = await unpack(document.getElementById("plotly").textContent);
    const script = document.createElement("script");
    script.textContent = source;
    document.head.append(script);
    for (const element of document.querySelectorAll("[data-figure]")) {
      await drawFigure(element);
      await new Promise(resolve => setTimeout(resolve)); // the page stays usable meanwhile
    }
    root.dataset.ready = "true";
  };

  // On paper: light, and as wide as the sheet.
  let before = null;
  addEventListener("beforeprint", () => { before = root.dataset.theme; showTheme(false); });
  addEventListener("afterprint", () => { showTheme(before === "dark"); });

  drawAll().catch(error => {
    root.dataset.ready = "failed";
    for (const plot of document.querySelectorAll(".plot:not(.js-plotly-plot)")) {
      plot.textContent = "This browser cannot draw the figure.";
    }
    throw error;
  });
})();
