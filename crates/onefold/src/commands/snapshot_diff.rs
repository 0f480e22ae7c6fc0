//! `onefold snapshot diff`

use crate::context::Context;
use crate::output::Render;
use crate::rendering::diff::{Totals, heading};
use crate::session::Session;
use onefold_api::{DiffPage, SnapshotDiff};
use onefold_api::{Error, Result};
use serde::ser::{Error as _, SerializeStruct};
use serde::{Serialize, Serializer};
use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::process::ExitCode;

pub(super) fn run(context: &Context, request: SnapshotDiff) -> Result<ExitCode> {
    context.with_session(|session| {
        // The first request runs before any output, so that a refusal prints nothing else.
        let first = session.call(&request, &mut |_, _| {})?;
        let diff = Diff {
            session,
            since: request.since.as_deref(),
            name: &request.name,
            since_size_bytes: first.since_size_bytes,
            size_bytes: first.size_bytes,
            first: Cell::new(Some(first)),
            totals: Cell::default(),
            failure: RefCell::default(),
        };
        let printed = context.output.document(&diff);
        // If the output was cut short by a failure, return the failure.
        match diff.failure.take() {
            Some(error) => Err(error),
            None => printed,
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The whole list, of which only one page at a time is in memory.
struct Diff<'a> {
    session: &'a Session,
    since: Option<&'a str>,
    name: &'a str,
    since_size_bytes: Option<u64>,
    size_bytes: u64,
    first: Cell<Option<DiffPage>>,
    totals: Cell<Totals>,
    /// The error if a page could not be read.
    failure: RefCell<Option<Error>>,
}

impl Diff<'_> {
    /// The pages in order, up to the last or to one that cannot be read.
    fn pages(&self) -> impl Iterator<Item = DiffPage> {
        std::iter::successors(self.first.take(), |page| {
            let request = SnapshotDiff {
                since: self.since.map(str::to_owned),
                name: self.name.to_owned(),
                page: Some(page.next?),
            };
            let next = self.session.call(&request, &mut |_, _| {});
            next.map_err(|error| self.failure.replace(Some(error))).ok()
        })
        .inspect(|page| self.totals.set(self.totals.get().and(&page.extents)))
    }
}

impl Render for Diff<'_> {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        heading(out)?;
        for page in self.pages() {
            page.text(out)?;
        }
        if self.failure.borrow().is_some() {
            return Ok(());
        }
        self.totals.get().text(self.since, self.name, out)
    }
}

impl Serialize for Diff<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut document = serializer.serialize_struct("Diff", 7)?;
        document.serialize_field("since", &self.since)?;
        document.serialize_field("name", self.name)?;
        document.serialize_field("since_size_bytes", &self.since_size_bytes)?;
        document.serialize_field("size_bytes", &self.size_bytes)?;
        document.serialize_field("extents", &Extents(self))?;
        let totals = self.totals.get();
        document.serialize_field("data_bytes", &totals.data_bytes)?;
        document.serialize_field("zero_bytes", &totals.zero_bytes)?;
        document.end()
    }
}

/// Serialises the list page by page.
struct Extents<'a>(&'a Diff<'a>);

impl Serialize for Extents<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let extents = self.0.pages().flat_map(|page| page.extents);
        let written = serializer.collect_seq(extents)?;
        // A truncated document must not look complete.
        match self.0.failure.borrow().as_ref() {
            Some(error) => Err(S::Error::custom(error)),
            None => Ok(written),
        }
    }
}
