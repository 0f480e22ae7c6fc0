//! The rows of a shared pool's directory: names of volumes, groups, hosts, domains.
//!
//! | key | value |
//! | --- | --- |
//! | `volume/NAME` | the number of the group that has the volume |
//! | `group/NUMBER` | the name of the host that opens the group |
//! | `host/NAME` | a description of the host, for people |
//! | `domain/NAME` | the number of the domain; without a name, the last number that the pool used before it was converted |
//! | `next-group` | the first number that no group had |
//! | `created` | there once the pool has all of its parts |
//!
//! Values are text, so that `rados listomapvals` shows them. A row is written before the record that it is for: a volume's
//! name is claimed before the volume is made, and a claim without a volume is dropped when its group is opened.

use std::collections::BTreeMap;
use std::str::FromStr;

use onefold_engine::Directory;
use onefold_engine::cluster::Rows;
use onefold_format::{DomainId, GroupId};
use onefold_metadata::{Result, StoreError, StoreErrorKind};

const VOLUME: &str = "volume/";
const GROUP: &str = "group/";
const HOST: &str = "host/";
const DOMAIN: &str = "domain/";
const NEXT_GROUP: &str = "next-group";
const CREATED: &str = "created";

/// The number of the first group.
pub(super) const FIRST_GROUP: GroupId = GroupId(1);

/// A change of a row: its key, and its new value or none.
type Change = (String, Option<Vec<u8>>);

/// The directory of a shared pool.
#[derive(Clone, Copy)]
pub(super) struct Names<'a>(pub(super) &'a dyn Directory);

impl Names<'_> {
    /// Notes that the pool has all of its parts.
    pub(super) fn set_created(self) -> Result<()> {
        self.update("ending the creation of the pool", |_| {
            Ok(((), vec![set(CREATED, "", "yes")]))
        })
    }

    /// Whether the pool has all of its parts.
    pub(super) fn is_created(self) -> Result<bool> {
        let rows = self.read("reading the directory")?;
        Ok(rows.rows.contains_key(CREATED))
    }

    /// Makes the first group of a pool that is being converted, with its volumes and domains. `last_domain` is the last
    /// number that a domain had.
    pub(super) fn set_first_group(
        self,
        host: &str,
        volumes: &[String],
        domains: &BTreeMap<String, DomainId>,
        last_domain: u32,
    ) -> Result<()> {
        let group = FIRST_GROUP;
        self.update("noting the volumes", |_| {
            let mut changes = vec![
                set(NEXT_GROUP, "", group.0 + 1),
                set(GROUP, &group.to_string(), host),
                set(DOMAIN, "", last_domain),
            ];
            changes.extend(volumes.iter().map(|name| set(VOLUME, name, group)));
            changes.extend(
                domains
                    .iter()
                    .map(|(name, domain)| set(DOMAIN, name, domain.0)),
            );
            Ok(((), changes))
        })
    }

    /// Claims the name of a volume for a group.
    ///
    /// # Errors
    ///
    /// `Exists` if the name is taken.
    pub(super) fn claim_volume(self, name: &str, group: GroupId) -> Result<()> {
        self.update("claiming the name of a volume", |rows| {
            match number::<u64>(rows, VOLUME, name)? {
                Some(other) if other != group.0 => Err(StoreError::new(
                    StoreErrorKind::Exists,
                    format!("volume '{name}' exists already, in group {other}"),
                )),
                Some(_) => Ok(((), Vec::new())),
                None => Ok(((), vec![set(VOLUME, name, group)])),
            }
        })
    }

    /// Gives the name of a volume up, if the group has it.
    pub(super) fn release_volume(self, name: &str, group: GroupId) -> Result<()> {
        self.update("giving up the name of a volume", |rows| {
            let is_ours = number::<u64>(rows, VOLUME, name)? == Some(group.0);
            let changes = is_ours.then(|| (format!("{VOLUME}{name}"), None));
            Ok(((), changes.into_iter().collect()))
        })
    }

    /// The volumes that a group has, according to the directory.
    pub(super) fn volumes_of(self, group: GroupId) -> Result<Vec<String>> {
        let volumes = self.volumes()?.into_iter();
        let ours = volumes.filter(|(_, owner)| *owner == group);
        Ok(ours.map(|(name, _)| name).collect())
    }

    /// All volumes, and the groups that have them.
    pub(super) fn volumes(self) -> Result<BTreeMap<String, GroupId>> {
        let rows = self.read("reading the directory")?;
        let mut volumes = BTreeMap::new();
        for (name, value) in below(&rows, VOLUME) {
            volumes.insert(name.to_owned(), GroupId(parsed(VOLUME, name, value)?));
        }
        Ok(volumes)
    }

    /// A number that no group had, for a group of this host.
    pub(super) fn add_group(self, host: &str) -> Result<GroupId> {
        self.update("adding a group", |rows| {
            let next = number::<u64>(rows, NEXT_GROUP, "")?;
            let group = next.map_or(FIRST_GROUP, GroupId);
            let after = group.0.checked_add(1);
            let after = after.ok_or_else(|| damaged(NEXT_GROUP, ""))?;
            let changes = vec![
                set(NEXT_GROUP, "", after),
                set(GROUP, &group.to_string(), host),
            ];
            Ok((group, changes))
        })
    }

    /// Notes which host opens a group.
    pub(super) fn set_host_of(self, group: GroupId, host: &str) -> Result<()> {
        self.update("noting the host of a group", |_| {
            Ok(((), vec![set(GROUP, &group.to_string(), host)]))
        })
    }

    /// All groups, and the hosts that open them.
    pub(super) fn groups(self) -> Result<BTreeMap<GroupId, String>> {
        let rows = self.read("reading the directory")?;
        let mut groups = BTreeMap::new();
        for (key, value) in below(&rows, GROUP) {
            let group = key.parse().map_err(|_| damaged(GROUP, key))?;
            groups.insert(GroupId(group), text(GROUP, key, value)?.to_owned());
        }
        Ok(groups)
    }

    /// Notes that a host is there.
    pub(super) fn set_host(self, host: &str, description: &str) -> Result<()> {
        self.update("noting a host", |_| {
            Ok(((), vec![set(HOST, host, description)]))
        })
    }

    /// All hosts that ever opened the pool, and their descriptions.
    pub(super) fn hosts(self) -> Result<BTreeMap<String, String>> {
        let rows = self.read("reading the directory")?;
        let mut hosts = BTreeMap::new();
        for (host, value) in below(&rows, HOST) {
            hosts.insert(host.to_owned(), text(HOST, host, value)?.to_owned());
        }
        Ok(hosts)
    }

    /// The number of a domain, a new one if it has none. Numbers are never used again, because a domain's key is made from
    /// its number (P11).
    pub(super) fn domain(self, name: &str) -> Result<DomainId> {
        self.update("looking a domain up", |rows| {
            if let Some(known) = number::<u16>(rows, DOMAIN, name)? {
                return Ok((DomainId(known), Vec::new()));
            }
            let mut last = 0;
            for (domain, value) in below(rows, DOMAIN) {
                last = last.max(parsed::<u16>(DOMAIN, domain, value)?);
            }
            let next = last.checked_add(1).ok_or_else(|| {
                let message = "this pool has had 65,535 domains, which is all it can have";
                StoreError::new(StoreErrorKind::Invalid, message)
            })?;
            Ok((DomainId(next), vec![set(DOMAIN, name, next)]))
        })
    }

    fn read(self, doing: &str) -> Result<Rows> {
        self.0.read().map_err(|error| StoreError::io(doing, error))
    }

    /// Makes changes that follow from the present rows. Nobody else changes the rows between.
    fn update<T>(
        self,
        doing: &str,
        change: impl Fn(&Rows) -> Result<(T, Vec<Change>)>,
    ) -> Result<T> {
        loop {
            let rows = self.read(doing)?;
            let (result, changes) = change(&rows)?;
            if changes.is_empty() {
                return Ok(result);
            }
            let changed = self.0.change(rows.version, &changes);
            if changed.map_err(|error| StoreError::io(doing, error))? {
                return Ok(result);
            }
        }
    }
}

fn set(kind: &str, key: &str, value: impl ToString) -> Change {
    (format!("{kind}{key}"), Some(value.to_string().into_bytes()))
}

/// The rows of one kind, without the kind in their keys.
fn below<'a>(rows: &'a Rows, kind: &'static str) -> impl Iterator<Item = (&'a str, &'a [u8])> {
    let from = rows.rows.range(kind.to_owned()..);
    from.map_while(move |(key, value)| Some((key.strip_prefix(kind)?, &value[..])))
}

/// The number in a row, if the row is there.
fn number<T: FromStr>(rows: &Rows, kind: &str, key: &str) -> Result<Option<T>> {
    let value = rows.rows.get(&format!("{kind}{key}"));
    value.map(|value| parsed(kind, key, value)).transpose()
}

fn parsed<T: FromStr>(kind: &str, key: &str, value: &[u8]) -> Result<T> {
    text(kind, key, value)?
        .parse()
        .map_err(|_| damaged(kind, key))
}

fn text<'a>(kind: &str, key: &str, value: &'a [u8]) -> Result<&'a str> {
    std::str::from_utf8(value).map_err(|_| damaged(kind, key))
}

fn damaged(kind: &str, key: &str) -> StoreError {
    StoreError::damaged(format!("the row '{kind}{key}' of the pool's directory"))
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use onefold_engine::Cluster;
    use onefold_engine::simulated::SimulatedCluster;

    use super::*;

    #[test]
    fn a_converted_pool_uses_no_number_of_a_domain_again() {
        let host = SimulatedCluster::new(1).host(0);
        let names = Names(host.directory());
        let known = BTreeMap::from([("known".to_owned(), DomainId(3))]);
        let volumes = ["vm".to_owned()];
        names.set_first_group("kvm1", &volumes, &known, 7).unwrap();
        assert_eq!(names.domain("known").unwrap(), DomainId(3));
        assert_eq!(names.domain("new").unwrap(), DomainId(8));
        assert_eq!(names.volumes_of(FIRST_GROUP).unwrap(), volumes);
        assert_eq!(names.add_group("kvm1").unwrap(), GroupId(2));
    }
}
