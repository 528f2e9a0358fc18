#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# hostile.sh COMMAND [ARG...]  run COMMAND in a database of JOBQ_SERVER that has odd settings
#
# What a function does may not depend on what a database or a role sets. So this database sets what
# could change the meaning, the plan or the permission of a statement, and has casts that make some
# operators ambiguous. pg.h lets each test program call own_collations there: from then on every
# text that is an argument of a function has a collation that no column has.
set -eu
cd "$(dirname "$0")/../.."
[ -n "${JOBQ_SERVER_DIR-}" ] || { echo "hostile: needs a private server: tests/server.sh" >&2; exit 2; }
[ $# -gt 0 ] || { sed -n '3,/^set/{s/^# \{0,1\}//;/^set/!p;}' "$0"; exit 2; }

settings="
standard_conforming_strings=off escape_string_warning=off
DateStyle=German TimeZone=Asia/Jakarta IntervalStyle=sql_standard
extra_float_digits=-9 bytea_output=escape quote_all_identifiers=on
array_nulls=off transform_null_equals=on xmloption=document
default_transaction_isolation=serializable default_transaction_read_only=on
default_transaction_deferrable=on session_replication_role=replica
jit=off from_collapse_limit=1 join_collapse_limit=1
enable_seqscan=off enable_indexscan=off enable_indexonlyscan=off enable_bitmapscan=off
enable_tidscan=off enable_sort=off enable_hashagg=off enable_material=off enable_memoize=off
enable_nestloop=off enable_hashjoin=off enable_mergejoin=off"

# Messages in another language, where the machine has one.
for locale in $(locale -a 2>/dev/null | grep -E '^(de|fr|es)_'); do
    settings="$settings lc_messages=$locale"
    break
done

psql() { PATH=$JOBQ_SERVER_BIN:$PATH command psql -X -q -v ON_ERROR_STOP=1 "$@"; }

# What template1 has, databases that tests make have, too.
psql "$JOBQ_SERVER dbname=template1" <<'END'
CREATE CAST (int4 AS text) WITH INOUT AS IMPLICIT;
CREATE CAST (int8 AS text) WITH INOUT AS IMPLICIT;
CREATE COLLATION own (provider = libc, locale = 'C');

-- Moves each function of a schema that takes a text, and leaves in its place one that calls it
-- with texts of the collation "own".
CREATE FUNCTION own_collations(p_schema text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog SET quote_all_identifiers = off AS $$
DECLARE
    v_own text := p_schema || '_own';
    v record;
BEGIN
    EXECUTE format('CREATE SCHEMA %I; GRANT USAGE ON SCHEMA %1$I TO public', v_own);
    FOR v IN
        SELECT p.proname AS name, p.oid::regprocedure::text AS signature,
               pg_get_function_arguments(p.oid) AS arguments,
               pg_get_function_result(p.oid) AS result, concat_ws(' ',
                   CASE p.provolatile WHEN 'i' THEN 'IMMUTABLE' WHEN 's' THEN 'STABLE' END,
                   CASE WHEN p.proisstrict THEN 'STRICT' END,
                   CASE WHEN p.proretset THEN format('ROWS %s', p.prorows) END,
                   'SET jit = off') AS kind,
               a.passed
        FROM pg_proc p CROSS JOIN LATERAL (
            SELECT bool_or(t.typcollation <> 0) AS texts, string_agg(format('$%s%s', u.n,
                   CASE WHEN t.typcollation <> 0 THEN ' COLLATE public.own' END), ', '
                   ORDER BY u.n) AS passed
            FROM unnest(p.proargtypes) WITH ORDINALITY AS u (type, n)
            JOIN pg_type t ON t.oid = u.type) a
        WHERE p.pronamespace = p_schema::regnamespace AND p.prokind = 'f' AND a.texts
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET SCHEMA %I', v.signature, v_own);
        EXECUTE format('CREATE FUNCTION %I.%I(%s) RETURNS %s LANGUAGE sql %s AS $own$ SELECT * '
                       'FROM %I.%I(%s) $own$', p_schema, v.name, v.arguments, v.result, v.kind,
                       v_own, v.name, v.passed);
    END LOOP;
    -- Roles are held back by their rights on what calls these.
    EXECUTE format('GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA %I TO public', v_own);
    -- A schema of a newer version is not compared with a fresh one.
    EXECUTE format('UPDATE %I.meta SET version = version + 1', p_schema);
END $$;
END
{
    echo "CREATE DATABASE hostile;"
    for setting in $settings; do
        echo "ALTER DATABASE hostile SET ${setting%%=*} = '${setting#*=}';"
    done
} | psql "$JOBQ_SERVER"
export JOBQ_SERVER="$JOBQ_SERVER dbname=hostile"
exec "$@"
