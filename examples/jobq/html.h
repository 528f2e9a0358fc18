/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * html.h -- how jobq web writes a page: escaping, layout, style, script.
 *
 * Everything that a page shows goes through html or html_url, and both escape it.
 */

/* ---- escaping -------------------------------------------------------------------------------- */

/*
 * Appends a text so that it is a text in HTML, also inside an attribute in double quotes. A line's
 * end becomes a reference, so that a section of a page is one line of a server-sent event.
 */
static void html_text(app_text *out, const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        switch (c) {
        case '&': app_put(out, "&amp;"); break;
        case '<': app_put(out, "&lt;"); break;
        case '>': app_put(out, "&gt;"); break;
        case '"': app_put(out, "&quot;"); break;
        case '\'': app_put(out, "&#39;"); break;
        case '\n': app_put(out, "&#10;"); break;
        default:
            if (c < 0x20 || c == 0x7F) app_put(out, c == '\t' ? "\t" : "\xEF\xBF\xBD");
            else app_add(out, text, 1);
        }
    }
}

/* Appends a text as people see it: marks that turn the direction of writing are shown as U+FFFD,
   because they make a text look like another one. */
static void html_shown(app_text *out, const char *text)
{
    app_text plain = {0};

    for (; *text != '\0'; text++) {
        const unsigned char *c = (const unsigned char *)text;
        bool turns = c[0] == 0xE2 && ((c[1] == 0x80 && c[2] >= 0xAA && c[2] <= 0xAE) ||
                                      (c[1] == 0x81 && c[2] >= 0xA6 && c[2] <= 0xA9));

        app_add(&plain, turns ? "\xEF\xBF\xBD" : text, turns ? 3 : 1);
        if (turns) text += 2;
    }
    html_text(out, plain.ptr == NULL ? "" : plain.ptr);
    free(plain.ptr);
}

/* A log line or an error, in a fixed font; of a long one the first line, which unfolds the rest. */
static void html_long(app_text *out, const char *text)
{
    size_t line = strcspn(text, "\n");
    app_text first = {0};

    if (line > 120) line = 120;
    while (line > 0 && ((unsigned char)text[line] & 0xC0) == 0x80) line--;
    app_add(&first, text, line);
    app_put(out, text[line] == '\0' ? "<code>" : "<details><summary><code>");
    html_shown(out, first.ptr);
    app_put(out, "</code>");
    if (text[line] != '\0') {
        app_put(out, "</summary><pre tabindex=0>");
        html_shown(out, text);
        app_put(out, "</pre></details>");
    }
    free(first.ptr);
}

/* Appends a text so that it is a value in a URL. */
static void html_url(app_text *out, const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (strchr("-._~", c) || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z'))
            app_add(out, text, 1);
        else app_format(out, "%%%02X", c);
    }
}

APP_PRINTF(2, 3)
/* Appends HTML. %s is a text, and escaped; %d is an int, %.1f a double. */
static void html(app_text *out, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    while (*format != '\0') {
        size_t plain = strcspn(format, "%");

        app_add(out, format, plain);
        format += plain;
        if (*format == '\0') break;
        switch (format[1]) {
        case 's': html_text(out, va_arg(args, const char *)); break;
        case 'd': app_format(out, "%d", va_arg(args, int)); break;
        case '.': app_format(out, "%.1f", va_arg(args, double)); break;
        default: app_put(out, "%");
        }
        format += format[1] == '.' ? 4 : 2;
    }
    va_end(args);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* "1234567" in groups of three, which copy as digits; ~ before an estimate; + after a number that
   is at least so large. */
static void html_count(app_text *out, const char *digits)
{
    size_t len, i, first;
    bool least = strchr(digits, '+') != NULL;

    if (digits[0] == '~' || least) app_put(out, least ? "≥&nbsp;" : "≈&nbsp;");
    digits += digits[0] == '~';
    len = strspn(digits, "0123456789");
    first = len % 3 == 0 && len > 0 ? 3 : len % 3;
    app_add(out, digits, first);
    for (i = first; i < len; i += 3) app_format(out, "<i>%.3s</i>", digits + i);
    html(out, "%s", digits + len + (least && digits[len] == '+'));
}

/* How long ago an instant of WHEN was, as text; the instant itself is its title. */
static void html_when(app_text *out, const char *when, const char *text)
{
    char at[21];

    snprintf(at, sizeof at, "%s", when);
    if (text == when) html(out, "<span class=mute>%s</span>", when[0] == '\0' ? "–" : when);
    else html(out, "<time datetime=\"%s\" title=\"%s\">%s</time>", at, at, text);
}

/* An instant of LOOK_AT. The script adds it in the zone of the browser. */
static void html_at(app_text *out, const char *at)
{
    char iso[25];

    snprintf(iso, sizeof iso, "%.10sT%.12sZ", at, at + 11);
    html(out, "<time class=at datetime=\"%s\">%s</time>", iso, at);
}

/* The time of day, this many seconds ago. */
static void html_clock(app_text *out, int ago_s)
{
    time_t at = time(NULL) - ago_s;
    struct tm tm;
    char iso[24], clock[16];

    gmtime_r(&at, &tm);
    strftime(iso, sizeof iso, "%Y-%m-%dT%H:%M:00Z", &tm);
    strftime(clock, sizeof clock, "%H:%M UTC", &tm);
    html(out, "<time datetime=\"%s\">%s</time>", iso, clock);
}

/* A line through values, one each 10 s, the newest at the right, with axes: from 0 to the largest
   value at the left, times below. NAN at the beginning: not known. */
static void html_plot(app_text *out, const char *label, const char *unit, const float *values,
                      int count)
{
    int room = count < 30 ? 30 : count, first = 0, i;
    app_text line = {0};
    char top[32];
    float most = 1;

    while (first < count && isnan(values[first])) first++;

    for (i = 0; i < count; i++) most = values[i] > most ? values[i] : most;
    snprintf(top, sizeof top, "%.0f", (double)most);
    html(out, "<figure><figcaption>%s</figcaption><div class=axes><span>", label);
    html_count(out, top);
    html(out, " %s</span><svg class=plot viewBox=\"0 0 360 64\" preserveAspectRatio=none role=img "
         "aria-label=\"%s, last hour: at most %.1f, now %.1f\">"
         "<path class=grid d=\"M0 63.5H360M0 33H360M0 4H360\"/>", unit, label, (double)most,
         count > first ? (double)values[count - 1] : 0.0);
    for (i = first; i < count && count - first > 1; i++)
        html(&line, "%s%.1f %.1f", i == first ? "M" : "L",
             360.0 * (room - count + i) / (room - 1), 62.0 - 58.0 * (double)(values[i] / most));
    if (line.ptr != NULL) {
        html(out, "<path class=area d=\"%sV66H%.1fZ\"/>", line.ptr,
             360.0 * (room - count + first) / (room - 1));
        html(out, "<path class=curve d=\"%s\"/>", line.ptr);
    }
    app_put(out, "</svg><span>0</span><p class=mute>");
    html_clock(out, room * 10);
    html_clock(out, room * 5);
    html_clock(out, 0);
    app_put(out, "</p></div></figure>");
    free(line.ptr);
}

/* Bars of a histogram of 24 parts of a time, "slot:count slot:count ...". */
static void html_bars(app_text *out, const char *bars)
{
    long most = 1, sum = 0, slot, count;
    const char *at;
    char *end;

    for (at = bars; *at != '\0'; at = end) {
        slot = strtol(at, &end, 10);
        count = strtol(end + (*end == ':'), &end, 10);
        sum += count;
        if (end == at) break;
        if (count > most) most = count;
    }
    html(out, "<svg class=bars viewBox=\"0 0 96 22\" role=img aria-label=\"%d, at most %d at "
         "once\"><path class=grid d=\"M0 21.5H96\"/>", (int)sum, (int)most);
    for (at = bars; *at != '\0'; at = end) {
        slot = strtol(at, &end, 10);
        count = strtol(end + (*end == ':'), &end, 10);
        if (end == at) break;
        html(out, "<path class=tick d=\"M%d 21V%.1fh3V21Z\"/>", (int)slot * 4,
             20.0 - 19.0 * (double)count / (double)most);
    }
    app_put(out, "</svg>");
}

/* ---- style, script --------------------------------------------------------------------------- */

static const char html_style[] =
    ":root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#1d1f23;--mute:#63676f;"
    "--line:#e4e4e0;--edge:#83878d;--accent:#0b6e63;--tint:#0b6e6314;--bad:#b3261e;--on:#fff}"
    "@media(prefers-color-scheme:dark){:root{--bg:#131517;--card:#1a1d20;--ink:#e7e8ea;"
    "--mute:#9aa0a8;--line:#2c3035;--edge:#737a83;--accent:#4fc3b2;--tint:#4fc3b21c;"
    "--bad:#ff8a80;--on:#0d1f1c}}"
    "*{box-sizing:border-box}html{font:15px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif;"
    "background:var(--bg);color:var(--ink);font-variant-numeric:tabular-nums}body{margin:0}"
    ".stale::before{content:'No news for ten seconds: what you see may be old.';display:block;"
    "padding:8px 24px;background:var(--bad);color:var(--on)}"
    "a{color:inherit;text-decoration-color:var(--edge);text-underline-offset:3px}"
    "a:hover{color:var(--accent);text-decoration-color:currentColor}"
    ":focus-visible{outline:2px solid var(--accent);outline-offset:2px;border-radius:4px}"
    "header{display:flex;flex-wrap:wrap;gap:4px 24px;align-items:center;padding:12px 24px;"
    "border-bottom:1px solid var(--line);background:var(--card)}"
    ".red{--badge:#b3261e}.amber{--badge:#8a5a00}.green{--badge:#1b6e3c}.blue{--badge:#1a56a8}"
    ".violet{--badge:#6b3fa0}header:not([class='']){border-top:5px solid var(--badge)}"
    "#instance{padding:0 8px;border-radius:6px;border:1px solid var(--line);font-weight:500;"
    "overflow-wrap:anywhere}header:not([class='']) #instance{background:var(--badge);color:#fff}"
    ".brand{font-weight:650;text-decoration:none;display:flex;gap:8px;align-items:center}"
    ".brand svg{width:18px;stroke:var(--accent);stroke-width:2.4;stroke-linecap:round}"
    "nav{display:flex;flex-wrap:wrap;gap:2px;flex:1}nav a{padding:5px 10px;border-radius:6px;"
    "text-decoration:none;color:var(--mute)}nav a[aria-current]{color:var(--accent);"
    "background:var(--tint);font-weight:550}"
    "main{max-width:1180px;margin:0 auto;padding:24px}h1{font-size:24px;line-height:1.2;"
    "font-weight:620;letter-spacing:-.01em;margin:8px 0 24px;overflow-wrap:anywhere}"
    "h2{font-size:16px;font-weight:600;margin:40px 0 12px}"
    "section:first-of-type>h2:first-child{margin-top:0}"
    ".mute,.none{color:var(--mute)}.none{padding:8px 0}"
    ".hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}"
    ".skip{position:absolute;left:-999px}.skip:focus{position:static;display:block;"
    "padding:8px 24px}"
    ".cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(220px,1fr));gap:12px;"
    "margin:20px 0 0}.cards div,.plots figure,.panel,.table,pre{background:var(--card);"
    "border:1px solid var(--line);border-radius:10px}.cards div,.plots figure,.panel,pre{"
    "padding:14px 16px;margin:0}.cards dt{color:var(--mute);font-size:13px}"
    ".cards dd{margin:2px 0 0;font-size:24px;font-weight:600;letter-spacing:-.02em}"
    ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(250px,1fr));gap:12px;"
    "margin-top:12px}.plots p{margin:4px 0 0;font-size:12px}figcaption{font-weight:550;"
    "margin-bottom:8px}.plot{width:100%;height:64px;display:block}.grid{stroke:var(--line);"
    "fill:none;vector-effect:non-scaling-stroke}.area{fill:var(--tint)}.curve{fill:none;"
    "stroke:var(--accent);stroke-width:1.5;vector-effect:non-scaling-stroke}"
    ".axes{display:grid;grid-template-columns:auto 1fr;gap:0 8px;font-size:12px}.axes span{"
    "text-align:right;color:var(--mute);grid-column:1}.axes svg{grid-area:1/2/3}"
    ".axes span+svg+span{align-self:end}.axes p{grid-column:2;display:flex;"
    "justify-content:space-between}"
    ".table{position:relative;overflow-x:auto}table{border-collapse:collapse;width:100%}"
    "th,td{padding:9px 14px;text-align:left;vertical-align:top}"
    "td button{min-height:28px;padding:2px 10px;margin:-4px 0}"
    ".do{white-space:nowrap;position:sticky;right:0;background:var(--card)}tr:hover .do{"
    "background:linear-gradient(var(--tint),var(--tint)),var(--card)}thead th{"
    "font-size:12.5px;font-weight:550;color:var(--mute);white-space:nowrap}"
    "tbody tr{border-top:1px solid var(--line)}tbody th{font-weight:500}"
    "tbody tr:hover{background:var(--tint)}.n{text-align:right;white-space:nowrap}"
    "i{font-style:normal;margin-left:.18em}"
    "td.w{min-width:16em;overflow-wrap:anywhere;white-space:pre-line}time{white-space:nowrap}"
    ".at[data-local]::after{content:attr(data-local);display:block;color:var(--mute)}"
    ".state{display:inline-block;padding:0 8px;border-radius:99px;font-size:13px;"
    "border:1px solid var(--line);white-space:nowrap}.running{color:var(--accent);"
    "border-color:currentColor}.failed,.bad{color:var(--bad)}.failed{border-color:currentColor}"
    "form.filter{display:flex;flex-wrap:wrap;gap:12px;align-items:end;margin-bottom:20px}"
    "label{display:grid;gap:3px;font-size:13px;color:var(--mute)}"
    "input,select,button{font:inherit;color:inherit;background:var(--card);padding:6px 10px;"
    "border:1px solid var(--edge);border-radius:6px;min-height:36px;max-width:100%}"
    "input[type=checkbox]{min-height:0;width:17px;height:17px;accent-color:var(--accent)}"
    "input:not([type=checkbox]){width:11em}button{cursor:pointer;font-weight:500;"
    "white-space:nowrap}button:hover{border-color:var(--accent);color:var(--accent)}"
    "button.main{background:var(--accent);border-color:var(--accent);color:var(--on)}"
    ".acts{display:grid;gap:10px;margin:20px 0}.act{display:flex;flex-wrap:wrap;gap:6px 14px;"
    "align-items:center}code,pre{font:13px/1.55 ui-monospace,SFMono-Regular,Menlo,monospace;"
    "overflow-wrap:anywhere}.act code{color:var(--mute);flex:1 1 200px}"
    "pre{white-space:pre-wrap;max-height:480px;overflow:auto}"
    ".said{background:var(--tint);border-radius:8px;padding:10px 16px;margin:0 0 20px}"
    ".warn{border:1px solid var(--bad);color:var(--bad);background:none}"
    ".facts{display:grid;grid-template-columns:max-content 1fr;gap:6px 24px;margin:0}"
    ".facts dt{color:var(--mute)}.facts dd{margin:0;overflow-wrap:anywhere}"
    ".line{width:100%;height:14px;border-radius:4px;display:block;background:var(--line)}"
    ".wait{fill:var(--mute);opacity:.45}.run{fill:var(--accent)}"
    ".back{fill:var(--bad);opacity:.4}"
    ".bars{width:96px;height:22px}.sign{fill:none}.tick{fill:var(--bad)}"
    ".graph{overflow:auto;max-height:560px;margin-bottom:12px}.graph svg{display:block}"
    ".graph text{fill:var(--ink);font-size:13px}.graph .small{fill:var(--mute);font-size:11.5px}"
    ".edge{fill:none;stroke:var(--mute);stroke-width:1.2;opacity:.7}.box{fill:var(--card);"
    "stroke:var(--line);stroke-width:1.5}.box.succeeded{fill:var(--tint)}"
    ".box.running{stroke:var(--accent);stroke-width:2.5}.box.failed{stroke:var(--bad);"
    "stroke-width:2.5}.box.waiting,.box.ready{stroke-dasharray:4 3;stroke:var(--mute)}"
    ".graph a:hover .box{stroke:var(--accent)}"
    "progress{accent-color:var(--accent);width:90px;height:8px;vertical-align:middle}"
    ".pages{display:flex;gap:16px;margin-top:16px}.tabs{margin:0 0 12px}"
    "@media(max-width:600px){.cards{grid-template-columns:1fr 1fr}"
    "main,header{padding:12px 14px}nav a{padding:5px 7px}"
    "nav{flex:1 0 100%;flex-wrap:nowrap;overflow-x:auto}"
    "form.filter label{flex:1 1 40%}input:not([type=checkbox]){width:100%}"
    "h1{font-size:20px;margin-bottom:16px}.facts{grid-template-columns:1fr;gap:0}"
    ".facts dd{margin-bottom:8px}"
    /* Tables are cards: a row names its values, two in a line unless they are long. */
    ".table{background:none;border:0;overflow:visible}thead{display:none}table,tbody,th,td{"
    "display:block}tbody tr{display:grid;grid-template-columns:1fr 1fr;padding:6px 0;"
    "background:var(--card);border:1px solid var(--line);border-radius:10px;margin-bottom:10px}"
    "tbody th,tbody td{padding:3px 14px;overflow-wrap:anywhere;white-space:normal}"
    "td:empty{display:none}.do{position:static}td.w{min-width:0}th,.w,.do{grid-column:1/-1}"
    "td[data-h]::before{content:attr(data-h)': ';color:var(--mute)}"
    "tbody .n{text-align:left}td button{margin:4px 0}time,.state{white-space:normal}}"
    "@media(prefers-reduced-motion:no-preference){a,button{transition:color .12s,"
    "border-color .12s}}";

/*
 * Sections that the server sends are put into those on the page: an element that both have stays
 * the same element, so its focus, its scroll and a selection in it stay. A row is known by its
 * data-k, and a button by its value. Nothing changes while a mouse button is down or the mouse
 * moves, and a press on a button that has just been moved under a resting mouse does nothing.
 * Instants are shown in the zone of the browser, too.
 */
static const char html_script[] =
    "'use strict';const d=document,one=q=>d.querySelector(q),"
    "all=(q,e)=>[...(e||d).querySelectorAll(q)];\n"
    "const key=e=>e.dataset&&(e.dataset.k||(e.name==='do'?e.value:undefined));\n"
    "function fill(a,b){const want=[...b.childNodes],keys=new Set(want.map(key)),"
    "had=new Map([...a.children].map(e=>[key(e),e]));for(const[k,e]of had)"
    "if(k!==undefined&&!keys.has(k))e.remove();let at=a.firstChild,x;for(const n of want){"
    "const k=key(n),o=k!==undefined?had.get(k):at&&key(at)===undefined&&"
    "at.nodeName===n.nodeName?at:null;if(!o){a.insertBefore(n,at);continue}had.delete(k);"
    "while(at!==o&&o.contains(d.activeElement)){x=at;at=at.nextSibling;a.append(x)}"
    "if(at===o)at=at.nextSibling;else a.insertBefore(o,at);morph(o,n)}"
    "for(;at;at=x){x=at.nextSibling;at.remove()}}\n"
    "function morph(a,b){if(a.nodeType===3){if(a.data!==b.data)a.data=b.data;return}"
    "for(const{name}of[...a.attributes])if(name!=='open'&&!b.hasAttribute(name))"
    "a.removeAttribute(name);for(const{name,value}of b.attributes)"
    "if(a.getAttribute(name)!==value)a.setAttribute(name,value);fill(a,b)}\n"
    "const here=new Intl.DateTimeFormat([],{dateStyle:'medium',timeStyle:'long'});"
    "function local(){all('time').forEach(e=>{const t=here.format(new Date(e.dateTime));"
    "if(e.className)e.dataset.local=t;else e.title=e.dateTime+' · '+t})}local();\n"
    "const news=new Map,high=e=>e&&e.getBoundingClientRect().top;let aim=0,moved=0,late;\n"
    "function flush(){if(one('main:active')||Date.now()-aim<500)return;"
    "const b=one('main button:hover'),y=high(b);news.forEach((text,id)=>{"
    "const s=d.getElementById(id),t=d.createElement('template');t.innerHTML=text;"
    "if(s)fill(s,t.content)});if(news.size)local(),sql();"
    "news.clear();if(high(b)!==y)moved=Date.now()}\n"
    "d.addEventListener('pointermove',()=>{aim=Date.now()});"
    "d.addEventListener('pointerdown',()=>{late=Date.now()-moved<500});"
    "d.addEventListener('click',e=>{if(late&&e.detail&&e.target.closest('button'))"
    "e.preventDefault()},true);\n"
    "let es,heard,off;const b=one('#live'),say=()=>{b.textContent=(off?'Go on · paused ':"
    "'Pause · live ')+new Date().toLocaleTimeString()};function live(){"
    "const s=all('[data-live]').map(e=>e.id);if(es||off||!s.length)return;b.hidden=0;"
    "heard=Date.now();es=new EventSource(`/events?of=${s}&at=${location.pathname}`);"
    "es.onerror=()=>{if(es.readyState===2){rest();setTimeout(live,3000)}};"
    "es.onmessage=e=>{const i=e.data.indexOf(' '),k=e.data.slice(0,i),v=e.data.slice(i+1);"
    "if(k==='.'){heard=Date.now()+1e3*parseInt(v);say()}else{news.set(k,v);flush()}}}\n"
    "b.addEventListener('click',()=>{(off=!off)?rest():live();say()});\n"
    "setInterval(()=>{flush();d.body.classList.toggle('stale',"
    "!d.hidden&&!off&&Date.now()-heard>1e4)},1000);\n"
    "function rest(){if(es)es.close();es=null}\n"
    "d.addEventListener('visibilitychange',()=>d.hidden?rest():live());\n"
    "addEventListener('pagehide',rest);"
    "addEventListener('pageshow',e=>e.persisted?location.reload():live());live();\n"
    "const ids=()=>all('input[name=id]:checked,input[name=id][type=hidden]').map(e=>e.value);\n"
    "function sql(){all('code[data-ids]').forEach(c=>{"
    "c.textContent=c.dataset.ids.replace('$1',\"'{\"+ids()+\"}'\")})}\n"
    "d.addEventListener('change',e=>{if(e.target.id==='every')"
    "all('input[name=id]').forEach(b=>{b.checked=e.target.checked});sql()});sql();\n"
    "d.addEventListener('submit',e=>{const b=e.submitter;if(b?.dataset.ids&&!ids().length){"
    "e.preventDefault();alert('Select jobs first.')}});\n";
