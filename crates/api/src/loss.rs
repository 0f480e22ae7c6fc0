//! Requests and replies about data that a failed sync of the pool lost.

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::request::{Report, Request};
use crate::service::Service;
use crate::volume::PlanReply;

/// A volume that lost answered writes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DamagedVolumeReply {
    /// Name of the damaged volume.
    pub name: String,
    /// When the loss was found, in seconds since the Unix epoch.
    pub found_unix_seconds: u64,
}

/// The damaged volumes of the pool.
pub(crate) fn damaged_volumes(service: &Service) -> Vec<DamagedVolumeReply> {
    let stores = service.stores.all().into_iter();
    let damaged = stores.flat_map(|store| store.damaged_volumes());
    damaged
        .map(|(name, found_unix_seconds)| DamagedVolumeReply {
            name,
            found_unix_seconds,
        })
        .collect()
}

/// Accepts that a volume lost data when a sync of the pool failed; its flushes succeed again.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeAcceptLoss {
    /// The volume's name.
    pub name: String,
    /// Carry out the plan; without it, the plan is only returned.
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,
}

impl Request for VolumeAcceptLoss {
    const PATH: &'static str = "/v1/volume/accept-loss";
    type Reply = PlanReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<PlanReply> {
        let store = service.store_of(&self.name)?;
        store.volume(&self.name)?;
        let is_damaged = store
            .damaged_volumes()
            .iter()
            .any(|(name, _)| *name == self.name);
        let plan = if is_damaged {
            format!(
                "accept that answered writes of '{}' are lost: its flushes succeed again, and blocks that \
                 are lost give an error until they are written",
                self.name
            )
        } else {
            format!("nothing: '{}' lost no answered writes", self.name)
        };
        if self.yes {
            store.accept_loss(&self.name)?;
        }
        Ok(PlanReply {
            plan: vec![plan],
            done: self.yes,
            clients: Vec::new(),
        })
    }
}
