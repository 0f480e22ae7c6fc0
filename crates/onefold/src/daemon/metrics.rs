//! `serve --metrics`: figures for Prometheus, and endpoints for liveness and readiness.
//!
//! A separate thread answers even before the pool is opened, which may take a while after a crash. It uses
//! only the [`Service`] and changes nothing.

use crate::http::serve_connection;
use crate::limits::{ACCEPT_RETRY_PAUSE, METRICS_CONNECTIONS_MAX, METRICS_SCRAPES_MAX};
use crate::version;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use onefold_api::{Error, Measurements, PoolState, ProblemReason, Result, Service};
use onefold_jobs::JobState;
use onefold_store::{SpaceLevel, VolumeStat};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock};
use std::thread;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// The service, set once the pool is open.
type Opened = Arc<OnceLock<Monitored>>;

#[derive(Clone)]
struct Monitored {
    service: Service,
    /// The pool's name as the operator gave it, a label of every figure.
    pool: String,
}

/// The metrics server, which answers until the process ends.
pub(super) struct MetricsServer {
    service: Opened,
}

impl MetricsServer {
    /// Starts to listen: on a loopback address, or on any address if `any_address` is set.
    pub(super) fn start(address: SocketAddr, any_address: bool) -> Result<Self> {
        if !any_address && !address.ip().is_loopback() {
            return Err(Error::usage(format!(
                "--metrics {address} can be reached by other machines; --insecure-listen allows that"
            )));
        }
        let failed = |e: &io::Error| Error::io(format_args!("cannot listen on {address}"), e);
        let listener = TcpListener::bind(address).map_err(|e| failed(&e))?;
        listener.set_nonblocking(true).map_err(|e| failed(&e))?;
        let bound = listener.local_addr().map_err(|e| failed(&e))?;
        let service = Opened::default();
        let routes = routes(Arc::clone(&service));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(METRICS_SCRAPES_MAX)
            .build()
            .map_err(|e| failed(&e))?;
        thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || runtime.block_on(serve(listener, routes)))
            .map_err(|e| failed(&e))?;
        tracing::info!("metrics on http://{bound}/metrics");
        Ok(Self { service })
    }

    /// Sets the service to measure, once the pool is open.
    pub(super) fn set(&self, service: Service, pool: String) {
        let _ = self.service.set(Monitored { service, pool });
    }
}

async fn serve(listener: TcpListener, routes: Router) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "metrics are not served"),
    };
    let places = Arc::new(Semaphore::new(METRICS_CONNECTIONS_MAX));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let place = Arc::clone(&places).try_acquire_owned();
                let routes = routes.clone();
                tokio::spawn(async move {
                    // If too many connections are open, this one is closed.
                    if place.is_ok() {
                        serve_connection(stream, routes).await;
                    }
                });
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection for metrics");
                tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
            }
        }
    }
}

fn routes(service: Opened) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(ready))
        .with_state(service)
}

const OPENING: &str = "the pool is being opened\n";

async fn ready(State(service): State<Opened>) -> Response {
    let Some(service) = service.get() else {
        return (StatusCode::SERVICE_UNAVAILABLE, OPENING).into_response();
    };
    let service = service.service.clone();
    let asked = spawn_blocking(move || service.health_of_guests().not_ready()).await;
    match asked.unwrap_or_else(|e| Some(e.to_string())) {
        None => "ready\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n").into_response(),
    }
}

async fn metrics(State(service): State<Opened>) -> Response {
    let Some(monitored) = service.get().cloned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, OPENING).into_response();
    };
    let written = spawn_blocking(move || exposition(monitored)).await;
    match written.unwrap_or_else(|e| Err(Error::failed(e.to_string()))) {
        Ok(text) => (
            [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
            text,
        )
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// All figures in Prometheus' text format.
fn exposition(Monitored { service, pool }: Monitored) -> Result<String> {
    let labels = [("pool".into(), pool.into())].into_iter();
    let mut registry = Registry::with_prefix_and_labels("onefold", labels);
    registry.register_collector(Box::new(Figures(service.measure()?)));
    let mut text = String::new();
    let written = prometheus_text::encode(&mut text, &registry);
    written.map_err(|_| Error::failed("the figures cannot be written"))?;
    Ok(text)
}

#[derive(Debug)]
struct Figures(Measurements);

impl Collector for Figures {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let mut out = Out(encoder);
        out.build_info()?;
        out.health(&self.0)?;
        out.pool(&self.0)?;
        out.space(&self.0)?;
        out.host(&self.0)?;
        out.volumes(&self.0)?;
        out.inline(&self.0)?;
        out.requests(&self.0)?;
        out.jobs(&self.0)?;
        out.memory(&self.0)
    }
}

struct Out<'a>(DescriptorEncoder<'a>);

/// A gauge's labels and value.
type Sample<'a, const N: usize> = ([(&'static str, &'a str); N], f64);

impl Out<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        metric.encode_gauge(&(value as f64))
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, _, f64>(&value, None)
    }

    fn gauges<'a, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = Sample<'a, N>>,
    ) -> fmt::Result {
        let mut metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn counters<'a, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = ([(&'static str, &'a str); N], u64)>,
    ) -> fmt::Result {
        let mut metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            let mut family = metric.encode_family(&labels)?;
            family.encode_counter::<NoLabelSet, _, f64>(&value, None)?;
        }
        Ok(())
    }

    fn build_info(&mut self) -> fmt::Result {
        let labels = [
            ("version", version::RELEASE),
            ("commit", version::COMMIT),
            ("pool_format", version::POOL_FORMAT.as_str()),
            ("repository_format", version::REPOSITORY_FORMAT.as_str()),
        ];
        self.gauges(
            "build_info",
            "The running build, and the newest formats that it writes; always 1.",
            [(labels, 1.0)],
        )
    }

    fn health(&mut self, figures: &Measurements) -> fmt::Result {
        let health = &figures.health;
        self.gauge(
            "pool_ready",
            "1 if the pool serves its guests, 0 if they get errors or wait.",
            u64::from(health.state() != PoolState::NotReady),
        )?;
        self.gauges(
            "pool_problem",
            "1 for each reason for which something is wrong with the pool, 0 for the others.",
            ProblemReason::ALL.map(|reason| {
                let is_one = u8::from(health.has(reason));
                ([("reason", reason.name())], f64::from(is_one))
            }),
        )
    }

    fn pool(&mut self, figures: &Measurements) -> fmt::Result {
        let pool = &figures.pool;
        let bytes = |blocks: u64| blocks * u64::from(pool.block_size);
        self.gauge(
            "pool_size_bytes",
            "Size of the pool.",
            bytes(pool.pool_blocks),
        )?;
        self.gauge(
            "pool_free_bytes",
            "Free space of the pool.",
            bytes(pool.free_blocks),
        )?;
        self.gauge(
            "pool_logical_bytes",
            "Data of all layers of volumes and snapshots.",
            bytes(pool.logical_blocks),
        )?;
        self.gauge(
            "pool_pending_free_bytes",
            "Blocks that are being freed.",
            bytes(pool.pending_free_blocks),
        )?;
        self.gauge(
            "pool_claimed_bytes",
            "References taken in line that the index does not count yet.",
            bytes(pool.claimed_blocks),
        )?;
        self.gauge(
            "pool_claimed_max_bytes",
            "The most that may be claimed: duplicates beyond that are stored.",
            bytes(pool.claimed_max_blocks),
        )?;
        self.gauge(
            "pool_lost_bytes",
            "Blocks that a failed sync lost and that have not been written since.",
            bytes(pool.lost_blocks),
        )?;
        self.gauge(
            "pool_damaged_volumes",
            "Volumes that lost answered writes when a sync failed, and whose loss is not accepted.",
            figures.damaged_volumes,
        )?;
        let kinds = [
            ("private", pool.private_blocks),
            ("unsettled", pool.unsettled_blocks),
            ("unique", pool.unique_blocks),
            ("shared", pool.shared_blocks),
        ];
        self.gauges(
            "pool_physical_bytes",
            "Blocks in use: with one owner, being published, published once, shared.",
            kinds.map(|(kind, blocks)| ([("kind", kind)], bytes(blocks) as f64)),
        )
    }

    fn space(&mut self, figures: &Measurements) -> fmt::Result {
        let levels = [
            ("ok", SpaceLevel::Ok),
            ("low", SpaceLevel::Low),
            ("scarce", SpaceLevel::Scarce),
            ("reserve", SpaceLevel::Reserve),
            ("full", SpaceLevel::Full),
        ];
        self.gauges(
            "pool_space_level",
            "1 for the present level of space, 0 for the others.",
            levels.map(|(name, level)| {
                let is_present = u8::from(level == figures.pool.space);
                ([("level", name)], f64::from(is_present))
            }),
        )?;
        self.gauge(
            "pool_waiting_requests",
            "Requests that wait for space.",
            figures.nbd.waiting_requests,
        )
    }

    fn host(&mut self, figures: &Measurements) -> fmt::Result {
        let pool = &figures.pool;
        let parts = [
            ("data", pool.pool_bytes_on_disk),
            ("metadata", pool.metadata_bytes_on_disk),
            ("index", pool.index_bytes_on_disk),
        ];
        self.gauges(
            "pool_host_bytes",
            "Space that the host has allocated for each part of the pool.",
            parts.map(|(part, bytes)| ([("part", part)], bytes as f64)),
        )?;
        if let Some(free) = pool.host_free_bytes {
            self.gauge(
                "pool_host_free_bytes",
                "Free space of the file system that holds the pool's data.",
                free,
            )?;
        }
        let block_size = u64::from(pool.block_size);
        self.gauge(
            "pool_spare_bytes",
            "Free blocks that are known to have space on the host.",
            pool.spare_blocks * block_size,
        )?;
        self.counter(
            "pool_hole_bytes",
            "Blocks given to guests that had no space on the host, as far as was known.",
            pool.hole_blocks * block_size,
        )
    }

    fn volumes(&mut self, figures: &Measurements) -> fmt::Result {
        let (pool, exports) = (&figures.pool, &figures.nbd.exports);
        let block_size = u64::from(pool.block_size);
        let each = |value: fn(&VolumeStat, u64) -> Option<u64>| {
            let volumes = pool.volumes.iter();
            volumes.filter_map(move |volume| {
                let value = value(volume, block_size)?;
                Some(([("volume", volume.name.as_str())], value as f64))
            })
        };
        let size = each(|volume, _| Some(volume.size_bytes));
        self.gauges("volume_size_bytes", "Size as guests see it.", size)?;
        let mapped = each(|volume, _| Some(volume.mapped_bytes));
        self.gauges(
            "volume_mapped_bytes",
            "Data of the volume and its snapshots, as a quota counts it.",
            mapped,
        )?;
        let exclusive = each(|volume, block| Some(volume.usage?.exclusive_blocks * block));
        self.gauges(
            "volume_exclusive_bytes",
            "Data that nothing else refers to, as of the last accounting.",
            exclusive,
        )?;
        let clients = pool.volumes.iter().map(|volume| {
            let export = exports.iter().find(|export| export.name == volume.name);
            let clients = export.map_or(0, |export| export.clients);
            ([("volume", volume.name.as_str())], clients as f64)
        });
        self.gauges("volume_clients", "Attached NBD clients.", clients)
    }

    fn inline(&mut self, figures: &Measurements) -> fmt::Result {
        let volumes = || {
            let volumes = figures.pool.volumes.iter();
            volumes.filter(|volume| volume.inline.scanned_blocks > 0)
        };
        let outcomes = volumes().flat_map(|volume| {
            let (name, inline) = (volume.name.as_str(), &volume.inline);
            [
                ("zeros", inline.zero_blocks),
                ("hit", inline.hit_blocks),
                ("miss", inline.miss_blocks()),
            ]
            .map(|(outcome, blocks)| ([("volume", name), ("outcome", outcome)], blocks))
        });
        self.counters(
            "inline_blocks",
            "Blocks that were looked up when they were written, of volumes that have any.",
            outcomes,
        )?;
        let refused = volumes().flat_map(|volume| {
            let reasons = volume.inline.refused.by_reason();
            reasons.map(|(reason, blocks)| {
                let labels = [("volume", volume.name.as_str()), ("reason", reason)];
                (labels, blocks)
            })
        });
        self.counters(
            "inline_refused_blocks",
            "Misses whose content was found, and that were stored all the same.",
            refused,
        )
    }

    fn requests(&mut self, figures: &Measurements) -> fmt::Result {
        let ops = || {
            let exports = figures.nbd.exports.iter();
            exports.flat_map(|export| export.ops.iter().map(move |op| (export.name.as_str(), op)))
        };
        let outcomes = ops().flat_map(|(volume, op)| {
            [("ok", op.ok), ("error", op.error)].map(|(outcome, count)| {
                let labels = [("volume", volume), ("op", op.op), ("outcome", outcome)];
                (labels, count)
            })
        });
        self.counters("nbd_requests", "NBD requests answered.", outcomes)?;
        let bytes = ops().map(|(volume, op)| ([("volume", volume), ("op", op.op)], op.bytes));
        self.counters("nbd_bytes", "Bytes of NBD requests that succeeded.", bytes)?;
        let waits = figures.nbd.exports.iter().map(|export| {
            let volume = [("volume", export.name.as_str())];
            (volume, export.waited_for_worker)
        });
        self.counters(
            "nbd_requests_waited_for_worker",
            "NBD requests that found no thread of the server free.",
            waits,
        )?;
        let mut metric = self.0.encode_descriptor(
            "nbd_request_duration_seconds",
            "Time from receiving a request until its reply is ready.",
            None,
            MetricType::Histogram,
        )?;
        for durations in &figures.nbd.durations {
            metric
                .encode_family(&[("op", durations.op)])?
                .encode_histogram::<NoLabelSet>(
                    durations.sum_seconds,
                    durations.count,
                    &durations.buckets,
                    None,
                )?;
        }
        Ok(())
    }

    fn jobs(&mut self, figures: &Measurements) -> fmt::Result {
        let states = figures.jobs.iter().flat_map(|job| {
            JobState::ALL.into_iter().map(move |state| {
                let labels = [("task", job.kind.name()), ("state", state.name())];
                (labels, job.states[state as usize] as f64)
            })
        });
        self.gauges("job_state", "Jobs of a kind in a state.", states)?;
        let jobs = figures.jobs.iter();
        let backlogs = jobs.map(|job| ([("task", job.kind.name())], job.backlog_blocks as f64));
        self.gauges(
            "job_backlog_blocks",
            "Blocks that jobs have left to do.",
            backlogs,
        )?;
        let sum = |of: fn(&onefold_api::JobMeasurement) -> u64| figures.jobs.iter().map(of).sum();
        self.counter(
            "finder_scanned_blocks",
            "Blocks scanned for duplicates.",
            sum(|job| job.scanned_blocks),
        )?;
        self.counter(
            "finder_duplicate_blocks",
            "Duplicates found and shared.",
            sum(|job| job.duplicate_blocks),
        )?;
        self.gauge(
            "scrub_bad_blocks",
            "Blocks that are known to be bad.",
            figures.scrub.bad_blocks,
        )?;
        self.moment(
            "scrub_last_end_timestamp_seconds",
            "When the last scrub ended; absent before the first.",
            figures.scrub.ended_unix_seconds,
        )?;
        self.moment(
            "metadata_export_timestamp_seconds",
            "When this daemon's last export of metadata ended; absent before its first.",
            figures.exported_unix_seconds,
        )
    }

    /// Writes a time in seconds since the Unix epoch; omits it if it is 0.
    fn moment(&mut self, name: &str, help: &str, unix_seconds: u64) -> fmt::Result {
        match unix_seconds {
            0 => Ok(()),
            seconds => self.gauge(name, help, seconds),
        }
    }

    fn memory(&mut self, figures: &Measurements) -> fmt::Result {
        let memory = &figures.memory;
        let caches = [
            ("segments", memory.segments),
            ("nodes", memory.nodes),
            ("free_space", memory.free_space),
            ("records", memory.records),
            ("hash_caches", memory.hash_caches),
            ("claims", memory.claims),
            ("requests", figures.nbd.buffer_bytes),
        ];
        self.gauges(
            "memory_bytes",
            "Memory in use by each cache.",
            caches.map(|(cache, bytes)| ([("cache", cache)], bytes as f64)),
        )
    }
}
