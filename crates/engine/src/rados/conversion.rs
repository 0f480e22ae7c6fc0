//! The conversion of a pool with one owner (format 1) to a pool that hosts share (format 2), in place: data and secret stay
//! where they are, and the objects of the shared pool are made beside those of the old one.
//!
//! Crash behaviour: one change of `g.0` makes the pool a shared one. Before it, the pool is what it was, and objects of an
//! interrupted conversion belong to nobody; the next conversion removes them. After it, the parts that `g.0` names are not
//! used any more, and are removed.

use super::engine::RadosEngine;
use super::fences::FENCED_ROW;
use super::head::{self, FORMAT_KEY, Head};
use super::names::{self, DIRECTORY, Estate, FIRST_HEAD, object_name};
use super::rows::invalid;
use super::shared::{FORMAT, PoolDescription, RadosHost, remove_names, remove_some};
use super::{RadosPlace, directory, extents, run};
use crate::Part;
use crate::cluster::Owned;
use onefold_format::{GroupId, SpaceExtent};
use onefold_rados::{Client, Pool};
use std::io;

impl RadosHost {
    /// Makes the objects of a shared pool without groups and shards, beside those of the pool that `owner` owns. Remains of
    /// an earlier attempt are removed. Nobody uses the shared pool until [`RadosHost::end_conversion`].
    pub fn begin_conversion(
        owner: &RadosEngine,
        place: &RadosPlace,
        description: &PoolDescription,
    ) -> io::Result<()> {
        description.check()?;
        let pool = owner.operations().pool();
        let begun = head::read(pool, Estate::Pool).and_then(|head| {
            remove_names(pool, names::is_remains_of_conversion)?;
            directory::create(pool)?;
            keep_fences(pool, &head)?;
            extents::create(pool)?;
            description.write(pool)
        });
        begun.map_err(|error| place.explain("converting", error))
    }

    /// Makes space extents those of groups: `leased`, in ascending order, of all below `end`. No group has taken any before.
    pub fn set_leased(&self, end: u64, leased: &[SpaceExtent]) -> io::Result<()> {
        let set = extents::set_leased(self.pool(), end, leased);
        set.map_err(|error| self.failed("setting the space extents of", error))
    }

    /// Makes the pool that `owner` owns a shared one, and removes its former parts.
    ///
    /// # Errors
    ///
    /// An error before the pool is a shared one. If the removal fails, a warning is logged: see
    /// [`RadosHost::remove_converted`].
    pub fn end_conversion(owner: &RadosEngine, place: &RadosPlace) -> io::Result<()> {
        owner.change_head(|change| change.format(FORMAT))?;
        run::forget(&place.run, Estate::Pool);
        let pool = owner.operations().pool().clone();
        if let Err(error) = remove_parts(&pool) {
            tracing::warn!(
                "{}; 'onefold pool convert' tries it again",
                place.explain("removing the former metadata of", error)
            );
        }
        Ok(())
    }

    /// Removes the former parts of a pool that was converted, if any are left. Returns whether there were some.
    pub fn remove_converted(client: &Client, place: &RadosPlace) -> io::Result<bool> {
        let pool = place.open(client)?;
        let removed = remove_parts(&pool);
        removed.map_err(|error| place.explain("removing the former metadata of", error))
    }
}

/// The fenced owners of the old pool stay fenced.
fn keep_fences(pool: &Pool, head: &Head) -> io::Result<()> {
    if head.fenced.is_empty() {
        return Ok(());
    }
    let addresses = head.fenced.iter();
    let rows: Vec<_> = addresses
        .map(|address| (format!("{FENCED_ROW}{address}"), ""))
        .collect();
    let op = pool.write_op().assert_exists().set_rows(&rows);
    pool.change(DIRECTORY, op).map(drop)
}

/// Removes the parts that the first head names, of a pool that is a shared one. Returns whether there were any.
fn remove_parts(pool: &Pool) -> io::Result<bool> {
    let (texts, version) = head::read_texts(pool, FIRST_HEAD)?;
    if texts.get(FORMAT_KEY).map(String::as_str) != Some(FORMAT) {
        return Err(invalid("the pool has one owner, which uses them"));
    }
    let keys: Vec<String> = texts.keys().cloned().collect();
    let head = head::parse(texts, version)?;
    let parts = head.parts.iter().map(|(part, entry)| (*part, *entry));
    let parts = parts.chain(head.replaced.map(|entry| (Part::Index, entry)));
    let shared = Estate::Shared(Owned::Group(GroupId(1)));
    let parts: Vec<_> = parts.filter(|(part, _)| !shared.shares(*part)).collect();
    let mut removed = vec![names::room(false, 0)];
    for (part, entry) in &parts {
        let base = Estate::Pool.base(*part, entry.generation);
        removed.extend((0..entry.objects()).map(|object| object_name(&base, object)));
    }
    if parts.is_empty() {
        return Ok(false);
    }
    remove_some(pool, &removed)?;
    let op = head::without_parts(pool.write_op().assert_version(version), &keys);
    pool.change(FIRST_HEAD, op)?;
    Ok(true)
}
