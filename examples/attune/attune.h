/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * attune.h -- the seventeen tables of attune.sql as C structs, and their finders.
 *
 * Include jobq_pg.h first. attune_open opens all tables. Then pass attune[ATTUNE_PACK] to the
 * jobq_pg_table_ calls; attune_pack is the struct of its rows.
 */
#ifndef ATTUNE_INCLUDED
#define ATTUNE_INCLUDED (1)

typedef enum attune_policy_method {
    ATTUNE_POLICY_METHOD_CANCEL,
    ATTUNE_POLICY_METHOD_ENQUEUE
} attune_policy_method;
static const char *const attune_policy_method_names[] = {"cancel", "enqueue", NULL};

typedef enum attune_runtime_type {
    ATTUNE_RUNTIME_TYPE_ACTION,
    ATTUNE_RUNTIME_TYPE_SENSOR
} attune_runtime_type;
static const char *const attune_runtime_type_names[] = {"action", "sensor", NULL};

typedef enum attune_worker_type {
    ATTUNE_WORKER_TYPE_LOCAL,
    ATTUNE_WORKER_TYPE_REMOTE,
    ATTUNE_WORKER_TYPE_CONTAINER
} attune_worker_type;
static const char *const attune_worker_type_names[] = {"local", "remote", "container", NULL};

typedef enum attune_worker_role {
    ATTUNE_WORKER_ROLE_ACTION,
    ATTUNE_WORKER_ROLE_SENSOR,
    ATTUNE_WORKER_ROLE_HYBRID
} attune_worker_role;
static const char *const attune_worker_role_names[] = {"action", "sensor", "hybrid", NULL};

typedef enum attune_worker_status {
    ATTUNE_WORKER_STATUS_ACTIVE,
    ATTUNE_WORKER_STATUS_INACTIVE,
    ATTUNE_WORKER_STATUS_BUSY,
    ATTUNE_WORKER_STATUS_ERROR
} attune_worker_status;
static const char *const attune_worker_status_names[] = {
    "active", "inactive",
    "busy", "error", NULL};

typedef enum attune_enforcement_status {
    ATTUNE_ENFORCEMENT_STATUS_CREATED,
    ATTUNE_ENFORCEMENT_STATUS_PROCESSED,
    ATTUNE_ENFORCEMENT_STATUS_DISABLED
} attune_enforcement_status;
static const char *const attune_enforcement_status_names[] = {
    "created",
    "processed", "disabled", NULL};

typedef enum attune_enforcement_condition {
    ATTUNE_ENFORCEMENT_CONDITION_ANY,
    ATTUNE_ENFORCEMENT_CONDITION_ALL
} attune_enforcement_condition;
static const char *const attune_enforcement_condition_names[] = {"any", "all", NULL};

typedef enum attune_execution_status {
    ATTUNE_EXECUTION_STATUS_REQUESTED,
    ATTUNE_EXECUTION_STATUS_SCHEDULING,
    ATTUNE_EXECUTION_STATUS_SCHEDULED,
    ATTUNE_EXECUTION_STATUS_RUNNING,
    ATTUNE_EXECUTION_STATUS_COMPLETED,
    ATTUNE_EXECUTION_STATUS_FAILED,
    ATTUNE_EXECUTION_STATUS_CANCELING,
    ATTUNE_EXECUTION_STATUS_CANCELLED,
    ATTUNE_EXECUTION_STATUS_TIMEOUT,
    ATTUNE_EXECUTION_STATUS_ABANDONED
} attune_execution_status;
static const char *const attune_execution_status_names[] = {
    "requested", "scheduling", "scheduled", "running", "completed",
    "failed", "canceling", "cancelled", "timeout", "abandoned", NULL};

typedef enum attune_inquiry_status {
    ATTUNE_INQUIRY_STATUS_PENDING,
    ATTUNE_INQUIRY_STATUS_RESPONDED,
    ATTUNE_INQUIRY_STATUS_TIMEOUT,
    ATTUNE_INQUIRY_STATUS_CANCELLED
} attune_inquiry_status;
static const char *const attune_inquiry_status_names[] = {
    "pending", "responded",
    "timeout", "cancelled", NULL};

typedef enum attune_owner_type {
    ATTUNE_OWNER_TYPE_SYSTEM,
    ATTUNE_OWNER_TYPE_IDENTITY,
    ATTUNE_OWNER_TYPE_PACK,
    ATTUNE_OWNER_TYPE_ACTION,
    ATTUNE_OWNER_TYPE_SENSOR
} attune_owner_type;
static const char *const attune_owner_type_names[] = {
    "system", "identity",
    "pack", "action", "sensor", NULL};

typedef enum attune_notification_state {
    ATTUNE_NOTIFICATION_STATE_CREATED,
    ATTUNE_NOTIFICATION_STATE_QUEUED,
    ATTUNE_NOTIFICATION_STATE_PROCESSING,
    ATTUNE_NOTIFICATION_STATE_ERROR
} attune_notification_state;
static const char *const attune_notification_state_names[] = {
    "created", "queued",
    "processing", "error", NULL};

typedef struct attune_pack {
    int64_t id;
    jobq_str ref;
    jobq_str label;
    jobq_str description;
    jobq_str version;
    jobq_str conf_schema;
    jobq_str config;
    jobq_str meta;
    jobq_pg_texts tags;
    jobq_pg_texts runtime_deps;
    bool is_standard;
    int64_t created;
    int64_t updated;
} attune_pack;

static const jobq_pg_column attune_pack_columns[] = {
    JOBQ_PG_COLUMN(attune_pack, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_pack, ref, TEXT, JOBQ_PG_SEARCH),
    JOBQ_PG_COLUMN(attune_pack, label, TEXT, JOBQ_PG_SEARCH),
    JOBQ_PG_COLUMN(attune_pack, description, TEXT, JOBQ_PG_NULLABLE | JOBQ_PG_SEARCH),
    JOBQ_PG_COLUMN(attune_pack, version, TEXT, 0),
    JOBQ_PG_COLUMN(attune_pack, conf_schema, JSON, 0),
    JOBQ_PG_COLUMN(attune_pack, config, JSON, 0),
    JOBQ_PG_COLUMN(attune_pack, meta, JSON, 0),
    JOBQ_PG_COLUMN(attune_pack, tags, TEXTS, 0),
    JOBQ_PG_COLUMN(attune_pack, runtime_deps, TEXTS, 0),
    JOBQ_PG_COLUMN(attune_pack, is_standard, BOOL, 0),
    JOBQ_PG_COLUMN(attune_pack, created, TIMESTAMPTZ, JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_pack, updated, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMNS_END};

typedef struct attune_runtime {
    int64_t id;
    jobq_str ref;
    jobq_pg_maybe_int64 pack;
    jobq_str pack_ref;
    jobq_str description;
    attune_runtime_type runtime_type;
    jobq_str name;
    jobq_str distributions;
    jobq_str installation;
    jobq_str installers;
    int64_t created;
    int64_t updated;
} attune_runtime;

static const jobq_pg_column attune_runtime_columns[] = {
    JOBQ_PG_COLUMN(attune_runtime, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_runtime, ref, TEXT, JOBQ_PG_SEARCH),
    JOBQ_PG_COLUMN(attune_runtime, pack, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_runtime, pack_ref, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_runtime, description, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_ENUM_COLUMN(attune_runtime, runtime_type, attune_runtime_type_names, 0),
    JOBQ_PG_COLUMN(attune_runtime, name, TEXT, 0),
    JOBQ_PG_COLUMN(attune_runtime, distributions, JSON, 0),
    JOBQ_PG_COLUMN(attune_runtime, installation, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_runtime, installers, JSON, 0),
    JOBQ_PG_COLUMN(attune_runtime, created, TIMESTAMPTZ, JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_runtime, updated, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMNS_END};

typedef struct attune_worker {
    int64_t id;
    jobq_str name;
    attune_worker_type worker_type;
    attune_worker_role worker_role;
    jobq_pg_maybe_int64 runtime;
    jobq_str host;
    jobq_pg_maybe_int32 port;
    attune_worker_status status;
    jobq_str capabilities;
    jobq_str meta;
    jobq_pg_maybe_int64 last_heartbeat;
    int64_t created;
    int64_t updated;
} attune_worker;

static const jobq_pg_column attune_worker_columns[] = {
    JOBQ_PG_COLUMN(attune_worker, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_worker, name, TEXT, 0),
    JOBQ_PG_ENUM_COLUMN(attune_worker, worker_type, attune_worker_type_names, 0),
    JOBQ_PG_ENUM_COLUMN(attune_worker, worker_role, attune_worker_role_names, 0),
    JOBQ_PG_COLUMN(attune_worker, runtime, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_worker, host, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_worker, port, INT32, JOBQ_PG_NULLABLE),
    JOBQ_PG_ENUM_COLUMN(attune_worker, status, attune_worker_status_names, 0),
    JOBQ_PG_COLUMN(attune_worker, capabilities, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_worker, meta, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_worker, last_heartbeat, TIMESTAMPTZ, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_worker, created, TIMESTAMPTZ, JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_worker, updated, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMNS_END};

typedef struct attune_action {
    int64_t id;
    jobq_str ref;
    int64_t pack;
    jobq_str pack_ref;
    jobq_str label;
    jobq_str description;
    jobq_str entrypoint;
    jobq_pg_maybe_int64 runtime;
    jobq_str param_schema;
    jobq_str out_schema;
    bool is_workflow;
    jobq_pg_maybe_int64 workflow_def;
    bool is_adhoc;
    int64_t created;
    int64_t updated;
} attune_action;

static const jobq_pg_column attune_action_columns[] = {
    JOBQ_PG_COLUMN(attune_action, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_action, ref, TEXT, JOBQ_PG_SEARCH),
    JOBQ_PG_COLUMN(attune_action, pack, INT64, 0),
    JOBQ_PG_COLUMN(attune_action, pack_ref, TEXT, 0),
    JOBQ_PG_COLUMN(attune_action, label, TEXT, JOBQ_PG_SEARCH),
    JOBQ_PG_COLUMN(attune_action, description, TEXT, JOBQ_PG_SEARCH),
    JOBQ_PG_COLUMN(attune_action, entrypoint, TEXT, 0),
    JOBQ_PG_COLUMN(attune_action, runtime, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_action, param_schema, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_action, out_schema, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_action, is_workflow, BOOL, 0),
    JOBQ_PG_COLUMN(attune_action, workflow_def, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_action, is_adhoc, BOOL, 0),
    JOBQ_PG_COLUMN(attune_action, created, TIMESTAMPTZ, JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_action, updated, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMNS_END};

typedef struct attune_policy {
    int64_t id;
    jobq_str ref;
    jobq_pg_maybe_int64 pack;
    jobq_str pack_ref;
    jobq_pg_maybe_int64 action;
    jobq_str action_ref;
    jobq_pg_texts parameters;
    attune_policy_method method;
    int32_t threshold;
    jobq_str name;
    jobq_str description;
    jobq_pg_texts tags;
    int64_t created;
    int64_t updated;
} attune_policy;

static const jobq_pg_column attune_policy_columns[] = {
    JOBQ_PG_COLUMN(attune_policy, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_policy, ref, TEXT, JOBQ_PG_SEARCH),
    JOBQ_PG_COLUMN(attune_policy, pack, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_policy, pack_ref, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_policy, action, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_policy, action_ref, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_policy, parameters, TEXTS, 0),
    JOBQ_PG_ENUM_COLUMN(attune_policy, method, attune_policy_method_names, 0),
    JOBQ_PG_COLUMN(attune_policy, threshold, INT32, 0),
    JOBQ_PG_COLUMN(attune_policy, name, TEXT, 0),
    JOBQ_PG_COLUMN(attune_policy, description, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_policy, tags, TEXTS, 0),
    JOBQ_PG_COLUMN(attune_policy, created, TIMESTAMPTZ, JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_policy, updated, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMNS_END};

typedef struct attune_trigger {
    int64_t id;
    jobq_str ref;
    jobq_pg_maybe_int64 pack;
    jobq_str pack_ref;
    jobq_str label;
    jobq_str description;
    bool enabled;
    jobq_str param_schema;
    jobq_str out_schema;
    bool webhook_enabled;
    jobq_str webhook_key;
    jobq_str webhook_config;
    bool is_adhoc;
    int64_t created;
    int64_t updated;
} attune_trigger;

static const jobq_pg_column attune_trigger_columns[] = {
    JOBQ_PG_COLUMN(attune_trigger, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_trigger, ref, TEXT, JOBQ_PG_SEARCH),
    JOBQ_PG_COLUMN(attune_trigger, pack, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_trigger, pack_ref, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_trigger, label, TEXT, 0),
    JOBQ_PG_COLUMN(attune_trigger, description, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_trigger, enabled, BOOL, 0),
    JOBQ_PG_COLUMN(attune_trigger, param_schema, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_trigger, out_schema, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_trigger, webhook_enabled, BOOL, 0),
    JOBQ_PG_COLUMN(attune_trigger, webhook_key, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_trigger, webhook_config, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_trigger, is_adhoc, BOOL, 0),
    JOBQ_PG_COLUMN(attune_trigger, created, TIMESTAMPTZ, JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_trigger, updated, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMNS_END};

typedef struct attune_sensor {
    int64_t id;
    jobq_str ref;
    jobq_pg_maybe_int64 pack;
    jobq_str pack_ref;
    jobq_str label;
    jobq_str description;
    jobq_str entrypoint;
    int64_t runtime;
    jobq_str runtime_ref;
    int64_t trigger;
    jobq_str trigger_ref;
    bool enabled;
    jobq_str param_schema;
    jobq_str config;
    int64_t created;
    int64_t updated;
} attune_sensor;

static const jobq_pg_column attune_sensor_columns[] = {
    JOBQ_PG_COLUMN(attune_sensor, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_sensor, ref, TEXT, JOBQ_PG_SEARCH),
    JOBQ_PG_COLUMN(attune_sensor, pack, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_sensor, pack_ref, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_sensor, label, TEXT, 0),
    JOBQ_PG_COLUMN(attune_sensor, description, TEXT, 0),
    JOBQ_PG_COLUMN(attune_sensor, entrypoint, TEXT, 0),
    JOBQ_PG_COLUMN(attune_sensor, runtime, INT64, 0),
    JOBQ_PG_COLUMN(attune_sensor, runtime_ref, TEXT, 0),
    JOBQ_PG_COLUMN(attune_sensor, trigger, INT64, 0),
    JOBQ_PG_COLUMN(attune_sensor, trigger_ref, TEXT, 0),
    JOBQ_PG_COLUMN(attune_sensor, enabled, BOOL, 0),
    JOBQ_PG_COLUMN(attune_sensor, param_schema, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_sensor, config, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_sensor, created, TIMESTAMPTZ, JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_sensor, updated, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMNS_END};

typedef struct attune_rule {
    int64_t id;
    jobq_str ref;
    int64_t pack;
    jobq_str pack_ref;
    jobq_str label;
    jobq_str description;
    int64_t action;
    jobq_str action_ref;
    int64_t trigger;
    jobq_str trigger_ref;
    jobq_str conditions;
    jobq_str action_params;
    jobq_str trigger_params;
    bool enabled;
    bool is_adhoc;
    int64_t created;
    int64_t updated;
} attune_rule;

static const jobq_pg_column attune_rule_columns[] = {
    JOBQ_PG_COLUMN(attune_rule, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_rule, ref, TEXT, JOBQ_PG_SEARCH),
    JOBQ_PG_COLUMN(attune_rule, pack, INT64, 0),
    JOBQ_PG_COLUMN(attune_rule, pack_ref, TEXT, 0),
    JOBQ_PG_COLUMN(attune_rule, label, TEXT, 0),
    JOBQ_PG_COLUMN(attune_rule, description, TEXT, 0),
    JOBQ_PG_COLUMN(attune_rule, action, INT64, 0),
    JOBQ_PG_COLUMN(attune_rule, action_ref, TEXT, 0),
    JOBQ_PG_COLUMN(attune_rule, trigger, INT64, 0),
    JOBQ_PG_COLUMN(attune_rule, trigger_ref, TEXT, 0),
    JOBQ_PG_COLUMN(attune_rule, conditions, JSON, 0),
    JOBQ_PG_COLUMN(attune_rule, action_params, JSON, 0),
    JOBQ_PG_COLUMN(attune_rule, trigger_params, JSON, 0),
    JOBQ_PG_COLUMN(attune_rule, enabled, BOOL, 0),
    JOBQ_PG_COLUMN(attune_rule, is_adhoc, BOOL, 0),
    JOBQ_PG_COLUMN(attune_rule, created, TIMESTAMPTZ, JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_rule, updated, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMNS_END};

typedef struct attune_event {
    int64_t id;
    jobq_pg_maybe_int64 trigger;
    jobq_str trigger_ref;
    jobq_str config;
    jobq_str payload;
    jobq_pg_maybe_int64 source;
    jobq_str source_ref;
    jobq_pg_maybe_int64 rule;
    jobq_str rule_ref;
    int64_t created;
    int64_t updated;
} attune_event;

static const jobq_pg_column attune_event_columns[] = {
    JOBQ_PG_COLUMN(attune_event, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_event, trigger, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_event, trigger_ref, TEXT, 0),
    JOBQ_PG_COLUMN(attune_event, config, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_event, payload, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_event, source, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_event, source_ref, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_event, rule, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_event, rule_ref, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_event, created, TIMESTAMPTZ, JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_event, updated, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMNS_END};

typedef struct attune_enforcement {
    int64_t id;
    jobq_pg_maybe_int64 rule;
    jobq_str rule_ref;
    jobq_str trigger_ref;
    jobq_str config;
    jobq_pg_maybe_int64 event;
    attune_enforcement_status status;
    jobq_str payload;
    attune_enforcement_condition condition;
    jobq_str conditions;
    int64_t created;
    int64_t updated;
} attune_enforcement;

static const jobq_pg_column attune_enforcement_columns[] = {
    JOBQ_PG_COLUMN(attune_enforcement, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_enforcement, rule, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_enforcement, rule_ref, TEXT, 0),
    JOBQ_PG_COLUMN(attune_enforcement, trigger_ref, TEXT, 0),
    JOBQ_PG_COLUMN(attune_enforcement, config, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_enforcement, event, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_ENUM_COLUMN(attune_enforcement, status, attune_enforcement_status_names, 0),
    JOBQ_PG_COLUMN(attune_enforcement, payload, JSON, 0),
    JOBQ_PG_ENUM_COLUMN(attune_enforcement, condition, attune_enforcement_condition_names, 0),
    JOBQ_PG_COLUMN(attune_enforcement, conditions, JSON, 0),
    JOBQ_PG_COLUMN(attune_enforcement, created, TIMESTAMPTZ, JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_enforcement, updated, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMNS_END};

typedef struct attune_identity {
    int64_t id;
    jobq_str login;
    jobq_str display_name;
    jobq_str password_hash;
    jobq_str attributes;
    int64_t created;
    int64_t updated;
} attune_identity;

static const jobq_pg_column attune_identity_columns[] = {
    JOBQ_PG_COLUMN(attune_identity, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_identity, login, TEXT, 0),
    JOBQ_PG_COLUMN(attune_identity, display_name, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_identity, password_hash, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_identity, attributes, JSON, 0),
    JOBQ_PG_COLUMN(attune_identity, created, TIMESTAMPTZ, JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_identity, updated, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMNS_END};

typedef struct attune_execution {
    int64_t id;
    jobq_pg_maybe_int64 action;
    jobq_str action_ref;
    jobq_str config;
    jobq_pg_maybe_int64 parent;
    jobq_pg_maybe_int64 enforcement;
    jobq_pg_maybe_int64 executor;
    attune_execution_status status;
    jobq_str result;
    jobq_str workflow_task;
    int64_t created;
    int64_t updated;
} attune_execution;

static const jobq_pg_column attune_execution_columns[] = {
    JOBQ_PG_COLUMN(attune_execution, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_execution, action, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_execution, action_ref, TEXT, 0),
    JOBQ_PG_COLUMN(attune_execution, config, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_execution, parent, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_execution, enforcement, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_execution, executor, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_ENUM_COLUMN(attune_execution, status, attune_execution_status_names, 0),
    JOBQ_PG_COLUMN(attune_execution, result, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_execution, workflow_task, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_execution, created, TIMESTAMPTZ, JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_execution, updated, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMNS_END};

typedef struct attune_inquiry {
    int64_t id;
    int64_t execution;
    jobq_str prompt;
    jobq_str response_schema;
    jobq_pg_maybe_int64 assigned_to;
    attune_inquiry_status status;
    jobq_str response;
    jobq_pg_maybe_int64 timeout_at;
    jobq_pg_maybe_int64 responded_at;
    int64_t created;
    int64_t updated;
} attune_inquiry;

static const jobq_pg_column attune_inquiry_columns[] = {
    JOBQ_PG_COLUMN(attune_inquiry, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_inquiry, execution, INT64, 0),
    JOBQ_PG_COLUMN(attune_inquiry, prompt, TEXT, 0),
    JOBQ_PG_COLUMN(attune_inquiry, response_schema, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_inquiry, assigned_to, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_ENUM_COLUMN(attune_inquiry, status, attune_inquiry_status_names, 0),
    JOBQ_PG_COLUMN(attune_inquiry, response, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_inquiry, timeout_at, TIMESTAMPTZ, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_inquiry, responded_at, TIMESTAMPTZ, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_inquiry, created, TIMESTAMPTZ, JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_inquiry, updated, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMNS_END};

typedef struct attune_permission_set {
    int64_t id;
    jobq_str ref;
    jobq_pg_maybe_int64 pack;
    jobq_str pack_ref;
    jobq_str label;
    jobq_str description;
    jobq_str grants;
    int64_t created;
    int64_t updated;
} attune_permission_set;

static const jobq_pg_column attune_permission_set_columns[] = {
    JOBQ_PG_COLUMN(attune_permission_set, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_permission_set, ref, TEXT, JOBQ_PG_SEARCH),
    JOBQ_PG_COLUMN(attune_permission_set, pack, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_permission_set, pack_ref, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_permission_set, label, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_permission_set, description, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_permission_set, grants, JSON, 0),
    JOBQ_PG_COLUMN(attune_permission_set, created, TIMESTAMPTZ, JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_permission_set, updated, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMNS_END};

typedef struct attune_permission_assignment {
    int64_t id;
    int64_t identity;
    int64_t permset;
    int64_t created;
} attune_permission_assignment;

static const jobq_pg_column attune_permission_assignment_columns[] = {
    JOBQ_PG_COLUMN(attune_permission_assignment, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_permission_assignment, identity, INT64, 0),
    JOBQ_PG_COLUMN(attune_permission_assignment, permset, INT64, 0),
    JOBQ_PG_COLUMN(attune_permission_assignment, created, TIMESTAMPTZ, JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMNS_END};

typedef struct attune_key {
    int64_t id;
    jobq_str ref;
    attune_owner_type owner_type;
    jobq_str owner;
    jobq_pg_maybe_int64 owner_identity;
    jobq_pg_maybe_int64 owner_pack;
    jobq_str owner_pack_ref;
    jobq_pg_maybe_int64 owner_action;
    jobq_str owner_action_ref;
    jobq_pg_maybe_int64 owner_sensor;
    jobq_str owner_sensor_ref;
    jobq_str name;
    bool encrypted;
    jobq_str encryption_key_hash;
    jobq_str value;
    int64_t created;
    int64_t updated;
} attune_key;

static const jobq_pg_column attune_key_columns[] = {
    JOBQ_PG_COLUMN(attune_key, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_key, ref, TEXT, 0),
    JOBQ_PG_ENUM_COLUMN(attune_key, owner_type, attune_owner_type_names, 0),
    JOBQ_PG_COLUMN(attune_key, owner, TEXT, 0),
    JOBQ_PG_COLUMN(attune_key, owner_identity, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_key, owner_pack, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_key, owner_pack_ref, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_key, owner_action, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_key, owner_action_ref, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_key, owner_sensor, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_key, owner_sensor_ref, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_key, name, TEXT, 0),
    JOBQ_PG_COLUMN(attune_key, encrypted, BOOL, 0),
    JOBQ_PG_COLUMN(attune_key, encryption_key_hash, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_key, value, TEXT, 0),
    JOBQ_PG_COLUMN(attune_key, created, TIMESTAMPTZ, JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_key, updated, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMNS_END};

typedef struct attune_notification {
    int64_t id;
    jobq_str channel;
    jobq_str entity_type;
    jobq_str entity;
    jobq_str activity;
    attune_notification_state state;
    jobq_str content;
    int64_t created;
    int64_t updated;
} attune_notification;

static const jobq_pg_column attune_notification_columns[] = {
    JOBQ_PG_COLUMN(attune_notification, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_notification, channel, TEXT, 0),
    JOBQ_PG_COLUMN(attune_notification, entity_type, TEXT, 0),
    JOBQ_PG_COLUMN(attune_notification, entity, TEXT, 0),
    JOBQ_PG_COLUMN(attune_notification, activity, TEXT, 0),
    JOBQ_PG_ENUM_COLUMN(attune_notification, state, attune_notification_state_names, 0),
    JOBQ_PG_COLUMN(attune_notification, content, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(attune_notification, created, TIMESTAMPTZ, JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(attune_notification, updated, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMNS_END};

/* name, name in capitals, order of lists. */
#define ATTUNE_ENTITIES(X) \
    X(pack, PACK, "ref") \
    X(runtime, RUNTIME, "ref") \
    X(worker, WORKER, "name id") \
    X(action, ACTION, "ref") \
    X(policy, POLICY, "ref") \
    X(trigger, TRIGGER, "ref") \
    X(sensor, SENSOR, "ref") \
    X(rule, RULE, "ref") \
    X(event, EVENT, "-created") \
    X(enforcement, ENFORCEMENT, "-created") \
    X(identity, IDENTITY, "login") \
    X(execution, EXECUTION, "-created") \
    X(inquiry, INQUIRY, "-created") \
    X(permission_set, PERMISSION_SET, "ref") \
    X(permission_assignment, PERMISSION_ASSIGNMENT, "-created") \
    X(key, KEY, "ref") \
    X(notification, NOTIFICATION, "-created")

enum {
#define ATTUNE_X(name, NAME, order) ATTUNE_##NAME,
    ATTUNE_ENTITIES(ATTUNE_X)
#undef ATTUNE_X
    ATTUNE_COUNT
};

static const jobq_pg_table_desc attune_descs[] = {
#define ATTUNE_X(name, NAME, order) \
    {"attune." #name, sizeof(attune_##name), attune_##name##_columns, #name, order, false},
    ATTUNE_ENTITIES(ATTUNE_X)
#undef ATTUNE_X
};

static jobq_pg_table *attune[ATTUNE_COUNT];

/* The finders: attune_rule_by_trigger(conn, &(attune_rule){.trigger = 7}, &rows, &error). They
 * return up to 1000 rows in the entity's order. For more, or another order, use jobq_pg_table_list;
 * by id, jobq_pg_table_get; by name or label, jobq_pg_query.search. */
#define ATTUNE_FINDERS(X) \
    X(pack, PACK, is_standard, "is_standard") \
    X(pack, PACK, tags, "tags@>") \
    X(policy, POLICY, tags, "tags@>") \
    X(action, ACTION, pack, "pack") \
    X(action, ACTION, runtime, "runtime") \
    X(action, ACTION, is_workflow, "is_workflow") \
    X(action, ACTION, workflow_def, "workflow_def") \
    X(policy, POLICY, pack, "pack") \
    X(policy, POLICY, action, "action") \
    X(runtime, RUNTIME, pack, "pack") \
    X(runtime, RUNTIME, runtime_type, "runtime_type") \
    X(worker, WORKER, status, "status") \
    X(worker, WORKER, worker_type, "worker_type") \
    X(worker, WORKER, name, "name") \
    X(worker, WORKER, worker_role, "worker_role") \
    X(trigger, TRIGGER, pack, "pack") \
    X(trigger, TRIGGER, enabled, "enabled") \
    X(trigger, TRIGGER, webhook_key, "webhook_key") \
    X(sensor, SENSOR, pack, "pack") \
    X(sensor, SENSOR, trigger, "trigger") \
    X(sensor, SENSOR, enabled, "enabled") \
    X(rule, RULE, pack, "pack") \
    X(rule, RULE, action, "action") \
    X(rule, RULE, trigger, "trigger") \
    X(rule, RULE, enabled, "enabled") \
    X(rule, RULE, trigger_and_enabled, "trigger enabled") \
    X(event, EVENT, trigger, "trigger") \
    X(event, EVENT, trigger_ref, "trigger_ref") \
    X(enforcement, ENFORCEMENT, rule, "rule") \
    X(enforcement, ENFORCEMENT, status, "status") \
    X(enforcement, ENFORCEMENT, event, "event") \
    X(enforcement, ENFORCEMENT, trigger_ref, "trigger_ref") \
    X(execution, EXECUTION, status, "status") \
    X(execution, EXECUTION, enforcement, "enforcement") \
    X(execution, EXECUTION, action_ref, "action_ref") \
    X(execution, EXECUTION, parent, "parent") \
    X(inquiry, INQUIRY, status, "status") \
    X(inquiry, INQUIRY, execution, "execution") \
    X(inquiry, INQUIRY, assigned_to, "assigned_to") \
    X(identity, IDENTITY, login, "login") \
    X(permission_set, PERMISSION_SET, pack, "pack") \
    X(permission_assignment, PERMISSION_ASSIGNMENT, identity, "identity") \
    X(permission_assignment, PERMISSION_ASSIGNMENT, permset, "permset") \
    X(key, KEY, owner_type, "owner_type") \
    X(key, KEY, encrypted, "encrypted") \
    X(key, KEY, owner_type_and_owner, "owner_type owner") \
    X(notification, NOTIFICATION, state, "state") \
    X(notification, NOTIFICATION, channel, "channel") \
    X(pack, PACK, ref, "ref") \
    X(action, ACTION, ref, "ref") \
    X(policy, POLICY, ref, "ref") \
    X(runtime, RUNTIME, ref, "ref") \
    X(trigger, TRIGGER, ref, "ref") \
    X(sensor, SENSOR, ref, "ref") \
    X(rule, RULE, ref, "ref") \
    X(permission_set, PERMISSION_SET, ref, "ref") \
    X(key, KEY, ref, "ref") \
    X(worker, WORKER, runtime, "runtime")

#define ATTUNE_X(name, NAME, by, columns)                                                     \
    static inline jobq_error attune_##name##_by_##by(PGconn *conn, const attune_##name *like,  \
                                                     jobq_pg_rows *rows, jobq_pg_error *error) \
    {                                                                                          \
        jobq_pg_query query = {columns, like, NULL, NULL, NULL, 0};                            \
        return jobq_pg_table_list(attune[ATTUNE_##NAME], conn, &query, rows, error);           \
    }
ATTUNE_FINDERS(ATTUNE_X)
#undef ATTUNE_X

/* Records a worker's heartbeat. JOBQ_ERROR_NOT_FOUND: no worker has this id. */
static inline jobq_error attune_worker_heartbeat(PGconn *conn, int64_t id, jobq_pg_error *error)
{
    attune_worker worker = {0};

    worker.id = id;
    worker.last_heartbeat.set = true; /* now */
    worker.status = ATTUNE_WORKER_STATUS_ACTIVE;
    return jobq_pg_table_update(attune[ATTUNE_WORKER], conn, "+last_heartbeat status", &worker,
                                NULL, NULL, NULL, error);
}

/* Marks workers without a heartbeat for this long as inactive. rows: those workers. */
static inline jobq_error attune_worker_silent(PGconn *conn, int64_t silent_us, jobq_pg_rows *rows,
                                              jobq_pg_error *error)
{
    attune_worker set = {0}, like = {0};

    set.status = ATTUNE_WORKER_STATUS_INACTIVE;
    like.status = ATTUNE_WORKER_STATUS_ACTIVE;
    like.last_heartbeat.value = -silent_us;
    like.last_heartbeat.set = true;
    return jobq_pg_table_update(attune[ATTUNE_WORKER], conn, "status", &set,
                                "status +last_heartbeat<", &like, rows, error);
}

/* Ends all pending inquiries that have timed out. rows: those inquiries. */
static inline jobq_error attune_inquiry_expire(PGconn *conn, jobq_pg_rows *rows,
                                               jobq_pg_error *error)
{
    attune_inquiry set = {0}, like = {0};

    set.status = ATTUNE_INQUIRY_STATUS_TIMEOUT;
    like.status = ATTUNE_INQUIRY_STATUS_PENDING;
    like.timeout_at.set = true; /* now */
    return jobq_pg_table_update(attune[ATTUNE_INQUIRY], conn, "status", &set,
                                "status +timeout_at<=", &like, rows, error);
}

/* Moves an execution from one status to another. JOBQ_ERROR_LOST: it was not in the first one. */
static inline jobq_error attune_execution_move(PGconn *conn, int64_t id,
                                               attune_execution_status from,
                                               attune_execution_status to, jobq_str result,
                                               jobq_pg_error *error)
{
    attune_execution row = {0}, was = {0};

    row.status = to;
    row.result = result;
    was.id = id;
    was.status = from;
    return jobq_pg_table_update(attune[ATTUNE_EXECUTION], conn, "status result", &row, "id status",
                                &was, NULL, error);
}

static inline void attune_close(void)
{
    int i;

    for (i = 0; i < ATTUNE_COUNT; i++) {
        jobq_pg_table_close(attune[i]);
        attune[i] = NULL;
    }
}

/* Opens all tables. Each description is checked against the database. */
static inline jobq_error attune_open(jobq_pg *jobq, jobq_pg_error *error)
{
    int i;

    for (i = 0; i < ATTUNE_COUNT; i++) {
        jobq_error code = jobq_pg_table_open(&attune[i], jobq, NULL, &attune_descs[i], error);
        if (code == JOBQ_OK) continue;
        attune_close();
        return code;
    }
    return JOBQ_OK;
}

#endif
