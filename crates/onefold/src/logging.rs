//! The log of commands that serve: the daemon, and `backup mount`.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Logs one line per event, with its time. `RUST_LOG` sets the level.
pub(crate) fn log_to_stderr() {
    let asked = std::env::var("RUST_LOG")
        .ok()
        .filter(|text| !text.is_empty());
    let asked = asked.map(|text| text.parse::<Targets>().map_err(|_| text));
    let (filter, unreadable) = match asked {
        Some(Ok(filter)) => (filter, None),
        Some(Err(text)) => (default_filter(), Some(text)),
        None => (default_filter(), None),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false);
    let subscriber = tracing_subscriber::registry().with(filter).with(lines);
    // This fails only if a subscriber is already set, which serves the same purpose.
    let _ = subscriber.try_init();
    if let Some(text) = unreadable {
        tracing::warn!("RUST_LOG is ignored: {text:?} is not a list of LEVEL and TARGET=LEVEL");
    }
}

fn default_filter() -> Targets {
    Targets::new().with_default(LevelFilter::INFO)
}
