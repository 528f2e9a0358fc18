-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq: what a schema consists of: each table, column, check, index, type, view, sequence and
-- function of schema $1, with a sum of its definition. The library compares the answer with
-- fingerprint.txt, the answer of a fresh installation, and so notices what is missing or was
-- changed. `make fingerprint` writes that file, and embed.awk puts both into jobq_pg.h.
--
-- The same on Postgres 14 to 18, on Citus, and for a schema of any name. So it leaves out what
-- differs there (the text of views, NOT NULL as a constraint), and what an administrator may
-- tune (defaults of columns, storage, tablespaces, grants, owners). The caller sets
-- search_path = pg_catalog, and the styles in which values are printed.
--
-- A schema that Citus distributes has other functions, keys and indexes: there only names are
-- compared, and those of less.

WITH s AS (
    SELECT n.oid, format('%I.', n.nspname) AS dot, CASE WHEN EXISTS (
               SELECT FROM pg_proc p WHERE p.pronamespace = n.oid
               AND p.prosrc LIKE format('%%"%s".%%', n.nspname))
           THEN format('"%s"', n.nspname) ELSE n.nspname END AS written,
           to_regclass(format('%I.original', n.nspname)) IS NOT NULL AS far
    FROM pg_namespace n WHERE n.nspname = $1
), t AS ( -- but not the leaves of partitioned tables, which are like their parents
    SELECT c.oid, c.relname, c.relkind, c.relispartition AS leaf
    FROM pg_class c, s WHERE c.relnamespace = s.oid
), found (kind, name, text, body) AS (
    SELECT 'table ', t.relname::text, '', '' FROM t WHERE t.relkind IN ('r', 'p')
    UNION ALL
    SELECT format('column %s.', t.relname), a.attname, concat_ws(' ',
               format_type(a.atttypid, a.atttypmod), a.attnotnull, a.atthasdef, a.attidentity,
               a.attgenerated, (SELECT o.collname FROM pg_collation o
                                WHERE o.oid = a.attcollation)), ''
    FROM t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE t.relkind IN ('r', 'p') AND NOT t.leaf
    UNION ALL
    SELECT CASE t.relkind WHEN 'c' THEN 'type ' ELSE 'view ' END, t.relname,
           string_agg(format('%s %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', '
                      ORDER BY a.attnum), ''
    FROM t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE t.relkind IN ('c', 'v') GROUP BY t.relkind, t.relname
    UNION ALL
    SELECT 'sequence ', t.relname, '', ''
    FROM t WHERE t.relkind = 'S' AND NOT EXISTS ( -- not that of an identity column
        SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = t.oid
        AND d.deptype = 'i')
    UNION ALL
    SELECT 'constraint ', k.conname, translate(format( -- without (): Citus writes fewer
               '%s %s', t.relname, pg_get_constraintdef(k.oid)), '()', ''), ''
    FROM t JOIN pg_constraint k ON k.conrelid = t.oid
    WHERE NOT t.leaf AND k.contype IN ('c', 'p', 'u', 'f', 'x')
    UNION ALL
    SELECT 'index ', t.relname, regexp_replace(pg_get_indexdef(i.indexrelid),
                                               ' WITH \([^)]*\)', ''), ''
    FROM t JOIN pg_index i ON i.indexrelid = t.oid
    WHERE NOT t.leaf AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = t.oid)
    UNION ALL -- all functions of a name together: one more might be called instead
    SELECT 'function ', p.proname, string_agg(concat_ws(' ',
               pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), p.prokind,
               p.provolatile, p.prosecdef, p.proconfig), ';'
               ORDER BY oidvectortypes(p.proargtypes)),
           string_agg(CASE WHEN p.prosrc ~ '\n *--' -- psql sends comments, the library none
                      THEN regexp_replace(p.prosrc, '\n *--[^\n]*', '', 'g')
                      ELSE p.prosrc END, ';' ORDER BY oidvectortypes(p.proargtypes))
    FROM pg_proc p, s WHERE p.pronamespace = s.oid GROUP BY p.proname
)
-- Postgres prints the schema before each name, in quotes where it needs them. In the bodies of
-- functions it is as it was written: the library writes quotes, unless it is jobq.
SELECT f.kind, f.name, CASE WHEN s.far THEN '' ELSE left(encode(sha256(convert_to(
           replace(f.text, s.dot, 'jobq.') || replace(replace(replace(f.body,
               s.written || '.', 'jobq.'), '''' || s.written || '''', '''jobq'''),
               'SCHEMA ' || s.written, 'SCHEMA jobq'), 'UTF8')), 'hex'), 6) END AS sum
FROM found f, s
WHERE NOT s.far
   OR f.kind ~ '^(function|column|type|view)' AND f.kind || f.name !~ '^function citus_'
