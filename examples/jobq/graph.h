/*
 * graph.h -- how jobq web draws a flow: a box for each job, in layers from left to right.
 */
enum { GRAPH_WIDTH = 150, GRAPH_HEIGHT = 40, GRAPH_ACROSS = 200, GRAPH_DOWN = 54, GRAPH_CROWD = 8 };

/* In a crowded layer jobs of one kind and state share a box. */
typedef struct graph_box {
    int row;   /* of the answer, of its first job */
    int jobs, layer, place;
} graph_box;

typedef struct graph_state {
    const PGresult *res;
    look_node *nodes;
    graph_box *boxes;
    int *box_of; /* of each node */
    int *wide;   /* boxes of each layer */
    int node_count, box_count, layers, most;
} graph_state;

static const char *graph_cell(const graph_state *g, int row, const char *head)
{
    return web_cell(g->res, row, look_at(LOOK_GRAPH, head));
}

/* The jobs of the flow, and their layers. */
static void graph_read(graph_state *g, const char *flow)
{
    int row;

    for (row = 0; row < PQntuples(g->res); row++) {
        look_node *node = &g->nodes[g->node_count];

        if (!look_is(g->res, row, LOOK_GRAPH) || strcmp(web_cell(g->res, row, 1), flow) != 0)
            continue;
        node->id = atoll(graph_cell(g, row, "Job"));
        node->after = graph_cell(g, row, "After");
        node->row = row;
        g->node_count++;
    }
    look_layers(g->nodes, g->node_count);
}

static bool graph_alike(const graph_state *g, int a, int b)
{
    return strcmp(graph_cell(g, a, "Kind"), graph_cell(g, b, "Kind")) == 0 &&
           strcmp(graph_cell(g, a, "State"), graph_cell(g, b, "State")) == 0;
}

/* Puts the jobs into boxes. */
static void graph_fill(graph_state *g)
{
    int i, b;
    int *crowd = app_need(calloc((size_t)g->node_count + 1, sizeof *crowd));

    for (i = 0; i < g->node_count; i++) crowd[g->nodes[i].layer]++;
    for (i = 0; i < g->node_count; i++) {
        const look_node *node = &g->nodes[i];

        b = crowd[node->layer] > GRAPH_CROWD ? 0 : g->box_count;
        while (b < g->box_count && !(g->boxes[b].layer == node->layer &&
                                     graph_alike(g, g->boxes[b].row, node->row))) b++;
        if (b == g->box_count) {
            graph_box box = {node->row, 0, node->layer, g->wide[node->layer]++};
            g->boxes[g->box_count++] = box;
        }
        g->boxes[b].jobs++;
        g->box_of[i] = b;
        if (node->layer >= g->layers) g->layers = node->layer + 1;
        if (g->wide[node->layer] > g->most) g->most = g->wide[node->layer];
    }
    free(crowd);
}

static int graph_x(const graph_box *box) { return 2 + box->layer * GRAPH_ACROSS; }

static int graph_y(const graph_state *g, const graph_box *box)
{
    return 2 + box->place * GRAPH_DOWN + (g->most - g->wide[box->layer]) * GRAPH_DOWN / 2;
}

/* A line from each box to those that wait for it. */
static void graph_edges(const graph_state *g, app_text *out)
{
    size_t boxes = (size_t)g->box_count;
    char *drawn = app_need(calloc(boxes + 1, boxes + 1));
    int i;

    for (i = 0; i < g->node_count; i++) {
        const char *list = g->nodes[i].after;
        const graph_box *to = &g->boxes[g->box_of[i]];
        long long id;

        while ((id = look_next_id(&list)) != 0) {
            const look_node *parent = look_node_find(g->nodes, g->node_count, id);
            const graph_box *from;
            char *once;
            int x, y, half = (GRAPH_ACROSS - GRAPH_WIDTH) / 2;

            if (parent == NULL) continue;
            from = &g->boxes[g->box_of[parent - g->nodes]];
            once = &drawn[(size_t)(from - g->boxes) * boxes + (size_t)(to - g->boxes)];
            if (*once) continue;
            *once = 1;
            x = graph_x(from) + GRAPH_WIDTH;
            y = graph_y(g, from) + GRAPH_HEIGHT / 2;
            html(out, "<path class=edge d=\"M%d %dC%d %d %d %d %d %d\"/>", x, y, x + half, y,
                 graph_x(to) - half, graph_y(g, to) + GRAPH_HEIGHT / 2, graph_x(to),
                 graph_y(g, to) + GRAPH_HEIGHT / 2);
        }
    }
    free(drawn);
}

static void graph_draw_box(const graph_state *g, app_text *out, const graph_box *box)
{
    const char *name = graph_cell(g, box->row, "Name"), *kind = graph_cell(g, box->row, "Kind");
    const char *state = graph_cell(g, box->row, "State");
    const char *id = graph_cell(g, box->row, "Job");
    bool many = box->jobs > 1;

    if (many || name[0] == '\0') name = kind[0] != '\0' ? kind : id;
    html(out, "<a href=\"/jobs/%s\"><svg x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\">"
         "<title>%s %s %s</title>", id, graph_x(box), graph_y(g, box), GRAPH_WIDTH, GRAPH_HEIGHT,
         id, kind, state);
    html(out, "<rect class=\"box %s\" x=1 y=1 width=\"%d\" height=\"%d\" rx=7 />"
         "<text x=10 y=17>%s</text><text x=10 y=32 class=small>", state, GRAPH_WIDTH - 2,
         GRAPH_HEIGHT - 2, name);
    if (many) html(out, "%d ", box->jobs);
    html(out, "%s</text></svg></a>", state);
}

static void page_graph(app_text *out, const PGresult *res, const char *flow)
{
    size_t rows = (size_t)PQntuples(res) + 1;
    graph_state g = {.res = res, .nodes = app_need(calloc(rows, sizeof *g.nodes)),
                     .boxes = app_need(calloc(rows, sizeof *g.boxes)),
                     .box_of = app_need(calloc(rows, sizeof *g.box_of)),
                     .wide = app_need(calloc(rows, sizeof *g.wide))};
    int i;

    graph_read(&g, flow);
    graph_fill(&g);
    if (g.node_count > 0) {
        int width = g.layers * GRAPH_ACROSS - GRAPH_ACROSS + GRAPH_WIDTH + 4;
        int height = g.most * GRAPH_DOWN - GRAPH_DOWN + GRAPH_HEIGHT + 4;

        html(out, "<div class=\"panel graph\" tabindex=0 role=region aria-label=\"Graph: %d jobs "
             "in %d layers\"><svg width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">", g.node_count,
             g.layers, width, height, width, height);
        graph_edges(&g, out);
        for (i = 0; i < g.box_count; i++) graph_draw_box(&g, out, &g.boxes[i]);
        app_put(out, "</svg></div>");
    }
    free(g.nodes);
    free(g.boxes);
    free(g.box_of);
    free(g.wide);
}
