/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * graph.h -- how jobq web draws a flow: a box for each job, in layers from left to right. SQL says
 * where, see LOOK_PLACES.
 */
enum { GRAPH_WIDTH = 150, GRAPH_HEIGHT = 40, GRAPH_ACROSS = 200, GRAPH_DOWN = 54 };

static int graph_x(long layer) { return 2 + (int)layer * GRAPH_ACROSS; }

static int graph_y(long down) { return 2 + (int)down * GRAPH_DOWN / 2; }

static const char *graph_cell(const PGresult *res, int row, const char *head)
{
    return PQgetvalue(res, row, look_at(LOOK_GRAPH, head));
}

static long graph_number(const PGresult *res, int row, const char *head)
{
    return atol(graph_cell(res, row, head));
}

/* Whether a row is the first job of a box of this flow. */
static bool graph_has_box(const PGresult *res, int row, const char *flow)
{
    return look_is(res, row, LOOK_GRAPH) && strcmp(graph_cell(res, row, "Flow"), flow) == 0 &&
           graph_number(res, row, "In the box") > 0;
}

/* A line to a box from each box that it waits for. */
static void graph_edges(app_text *out, const PGresult *res, int row)
{
    int to_x = graph_x(graph_number(res, row, "Layer"));
    int to_y = graph_y(graph_number(res, row, "Down")) + GRAPH_HEIGHT / 2;
    int half = (GRAPH_ACROSS - GRAPH_WIDTH) / 2;
    char *at = (char *)graph_cell(res, row, "Edges from");

    while (*at != '\0') {
        int x = graph_x(strtol(at, &at, 10)) + GRAPH_WIDTH;
        int y = graph_y(strtol(at, &at, 10)) + GRAPH_HEIGHT / 2;

        html(out, "<path class=edge d=\"M%d %dC%d %d %d %d %d %d\"/>", x, y, x + half, y,
             to_x - half, to_y, to_x, to_y);
    }
}

static void graph_box(app_text *out, const PGresult *res, int row)
{
    const char *name = graph_cell(res, row, "Name"), *kind = graph_cell(res, row, "Kind");
    const char *state = graph_cell(res, row, "State"), *id = graph_cell(res, row, "Job");
    int jobs = (int)graph_number(res, row, "In the box");

    if (jobs > 1 || name[0] == '\0') name = kind[0] != '\0' ? kind : id;
    html(out, "<a href=\"/jobs/%s\"><svg x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\">"
         "<title>%s %s %s</title>", id, graph_x(graph_number(res, row, "Layer")),
         graph_y(graph_number(res, row, "Down")), GRAPH_WIDTH, GRAPH_HEIGHT, id, kind, state);
    html(out, "<rect class=\"box %s\" x=1 y=1 width=\"%d\" height=\"%d\" rx=7 />"
         "<text x=10 y=17>%s</text><text x=10 y=32 class=small>", state, GRAPH_WIDTH - 2,
         GRAPH_HEIGHT - 2, name);
    if (jobs > 1) html(out, "%d ", jobs);
    html(out, "%s</text></svg></a>", state);
}

static void page_graph(app_text *out, const PGresult *res, const char *flow)
{
    int rows = PQntuples(res), row, jobs = 0, layers = 0, width, height;
    long down = 0;

    for (row = 0; row < rows; row++) {
        if (!graph_has_box(res, row, flow)) continue;
        jobs += (int)graph_number(res, row, "In the box");
        if (graph_number(res, row, "Layer") >= layers)
            layers = (int)graph_number(res, row, "Layer") + 1;
        if (graph_number(res, row, "Down") > down) down = graph_number(res, row, "Down");
    }
    if (jobs == 0) return;
    width = graph_x(layers - 1) + GRAPH_WIDTH + 2;
    height = graph_y(down) + GRAPH_HEIGHT + 2;
    html(out, "<div class=\"panel graph\" tabindex=0 role=region aria-label=\"Graph: %d jobs "
         "in %d layers\"><svg width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">", jobs, layers,
         width, height, width, height);
    for (row = 0; row < rows; row++)
        if (graph_has_box(res, row, flow)) graph_edges(out, res, row);
    for (row = 0; row < rows; row++)
        if (graph_has_box(res, row, flow)) graph_box(out, res, row);
    app_put(out, "</svg></div>");
}
