//! The configuration file of a throw-away cluster, and the reasons for its differences from the defaults.

use std::path::Path;

use super::{Ports, SIZE};

/// Subsystems whose debug logs every daemon keeps in memory by default, which costs processor time.
const SUBSYSTEMS: &[&str] = &[
    "asok",
    "auth",
    "bdev",
    "bluefs",
    "bluestore",
    "buffer",
    "client",
    "compressor",
    "context",
    "crush",
    "filer",
    "filestore",
    "finisher",
    "heartbeatmap",
    "journal",
    "journaler",
    "kstore",
    "leveldb",
    "lockdep",
    "memdb",
    "mgr",
    "mgrc",
    "mon",
    "monc",
    "ms",
    "none",
    "objclass",
    "objectcacher",
    "objecter",
    "optracker",
    "osd",
    "paxos",
    "perfcounter",
    "rados",
    "rocksdb",
    "striper",
    "throttle",
    "timer",
    "tp",
];

/// Options of RocksDB: with the defaults it takes 1 GiB for its buffers, and reads 1 GiB of log after a kill, which
/// takes most of a minute.
const ROCKSDB: &str = "compression=kNoCompression,max_write_buffer_number=2,\
                       min_write_buffer_number_to_merge=1,recycle_log_file_num=1,\
                       write_buffer_size=8388608,max_background_compactions=1,\
                       max_total_wal_size=33554432";

/// Where daemons answer queries. A socket's path may have 107 bytes, so it is relative to the cluster's directory, in
/// which the daemons run.
const ADMIN_SOCKET: &str = "admin_socket = $name.asok";

/// The text of `ceph.conf`.
pub(super) fn text(directory: &Path, fsid: &str, ports: Ports) -> String {
    let at = directory.display().to_string();
    [global(&at, fsid, ports), monitor(&at), osd(&at)].join("\n")
}

fn global(at: &str, fsid: &str, ports: Ports) -> String {
    let debug: String = SUBSYSTEMS
        .iter()
        .map(|name| format!("debug_{name} = 0/0\n"))
        .collect();
    format!(
        "\
[global]
fsid = {fsid}
keyring = {at}/keyring
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = false

# Addresses of both protocols, so that no name of this machine is ever looked up.
mon_host = {mon_host}
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_ipv4 = true
ms_bind_ipv6 = false
ms_bind_port_min = {port_min}
ms_bind_port_max = {port_max}
ms_async_op_threads = 2

# Nothing is written outside the directory.
run_dir = {at}
crash_dir = {at}/log
log_file = {at}/log/$name.log
mon_cluster_log_file = {at}/log/cluster.log
log_to_syslog = false
err_to_syslog = false
{debug}
# One machine holds all copies: this must be known when the monitor is made.
osd_crush_chooseleaf_type = 0
osd_pool_default_size = {SIZE}
osd_pool_default_pg_autoscale_mode = off
mon_allow_pool_delete = true
mon_max_pg_per_osd = 1000
mon_warn_on_pool_no_app = false
",
        mon_host = ports.monitor(),
        port_min = ports.osd_min(),
        port_max = ports.osd_max(),
    )
}

fn monitor(at: &str) -> String {
    format!(
        "\
[mon]
{ADMIN_SOCKET}
mon_data = {at}/mon
mon_data_avail_warn = 1
mon_data_avail_crit = 0
# One report is enough, and OSDs of one machine count singly.
mon_osd_min_down_reporters = 1
mon_osd_reporter_subtree_level = osd
# What was killed comes back: nothing is copied meanwhile.
mon_osd_down_out_interval = 3600
mon_osd_nearfull_ratio = .93
mon_osd_backfillfull_ratio = .95
mon_osd_full_ratio = .97
# Commands about OSDs take effect at once.
paxos_propose_interval = 0.1
"
    )
}

fn osd(at: &str) -> String {
    format!(
        "\
[osd]
{ADMIN_SOCKET}
osd_data = {at}/osd/$id
osd_objectstore = bluestore
osd_memory_target = 939524096
osd_op_num_shards = 2
osd_op_num_threads_per_shard = 2
osd_class_update_on_start = false
# A frozen OSD is noticed within 8 s.
osd_heartbeat_interval = 2
osd_heartbeat_grace = 8
osd_mon_heartbeat_interval = 5
osd_max_markdown_count = 1000
osd_recovery_sleep = 0
bluestore_block_create = true
bluestore_block_size = 10737418240
bluestore_cache_autotune = false
bluestore_cache_size = 67108864
bluestore_rocksdb_options = {ROCKSDB}
"
    )
}
