"""Look of the page: theme, style sheet and description for shared links."""

import gradio as gr

DESCRIPTION = (
    "An energy-based model computes the probability of your drawing, says whether it is unusual, "
    "and draws images of its own."
)
HEAD = f'<meta name="description" content="{DESCRIPTION}">'
THEME = gr.themes.Default(
    primary_hue="teal", secondary_hue="teal", neutral_hue="slate"
).set(  # higher contrast than the defaults
    body_text_color_subdued="*neutral_600",
    body_text_color_subdued_dark="*neutral_300",
    link_text_color="*primary_700",
    link_text_color_active="*primary_700",
    link_text_color_hover="*primary_800",
    link_text_color_visited="*primary_700",
    button_primary_background_fill="*primary_700",
    button_primary_background_fill_dark="*primary_700",
    button_primary_background_fill_hover="*primary_800",
    button_primary_background_fill_hover_dark="*primary_800",
)
CSS = """
/* scale small images up to the frame without interpolation */
.pixels img { image-rendering: pixelated; object-fit: contain !important; }
/* keep the block label off the title of a plot */
[data-testid="matplotlib"] { padding-top: 2rem; }
/* dark theme: invert the lightness of plots, keep the hues */
.dark [data-testid="matplotlib"] img { filter: invert(0.88) hue-rotate(180deg); }
.dark .photos [data-testid="matplotlib"] img { filter: none; }
/* gallery of examples: five columns, as many rows as needed */
.small .grid-wrap { min-height: 0 !important; max-height: none !important; padding-top: 2rem; }
.small .grid-container { grid-template-columns: repeat(5, 1fr) !important; }
/* wrap table cells between words only */
.prose table th, .prose table td {
  border-color: var(--border-color-primary);
  word-break: normal; overflow-wrap: break-word; padding: 0.5rem;
}
/* no empty boxes before the first run */
.hide-empty:has([aria-label="Empty value"]), .hide-empty:has(.empty) { display: none !important; }
/* the answer stands out */
#answer textarea { font-size: var(--text-lg); }
/* narrow screens: show the result above the settings */
@media (max-width: 640px) { .first { order: -1; } }
/* light theme: gradio's colours of the open tab and of JSON have too little contrast */
:root:not(.dark) body:not(.dark) :is(span.key, span.value) {
  color: var(--primary-800) !important;
}
:root:not(.dark) body:not(.dark) button[role="tab"][aria-selected="true"] {
  color: var(--primary-700);
}
"""
