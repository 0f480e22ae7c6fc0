//! Watches and notifications: how clients of a cluster send messages to each other.
//!
//! A notification goes to all watchers of an object, and returns with their replies. It is not stored. Ceph drops the
//! watch of a client that has been silent for a while, and reports the watchers that did not reply.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use crate::callback::{self, Wait, may_wait};
use crate::failure::{c_string, check};
use crate::library::{Completion, IoContext, Library, parts};
use crate::memory::Slot;
use crate::operation::{Version, refuse, submit};
use crate::pool::Pool;
use crate::session::Namespace;

/// A watch on an object. Dropping it ends the watch and waits; its callbacks are not called afterwards.
pub struct Watch {
    namespace: Arc<Namespace>,
    cookie: u64,
    /// The callbacks, at the address that librados has.
    watching: *mut Watching,
}

// SAFETY: the watch owns the callbacks, which librados' threads may call at the same time.
unsafe impl Send for Watch {}
// SAFETY: as above.
unsafe impl Sync for Watch {}

/// The callbacks of a watch, for librados.
struct Watching {
    namespace: Arc<Namespace>,
    object: Arc<CString>,
    on_notify: Box<dyn Fn(Notification) + Send + Sync>,
    on_error: Box<dyn Fn(io::Error) + Send + Sync>,
}

/// A notification that a watch received. It may be answered at any time, by any thread. The sender waits for the
/// answer; if this is dropped without one, until its timeout.
pub struct Notification {
    namespace: Arc<Namespace>,
    object: Arc<CString>,
    id: u64,
    cookie: u64,
    /// The [number](crate::Client::instance_id) of the client that sent it.
    notifier: u64,
    payload: Vec<u8>,
}

impl Notification {
    /// The bytes that the sender passed.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The [number](crate::Client::instance_id) of the client that sent it.
    pub fn notifier(&self) -> u64 {
        self.notifier
    }

    /// Sends an answer, without waiting. Whether it arrives is not known.
    pub fn reply(self, bytes: &[u8]) -> io::Result<()> {
        let (bytes, len) = notified(bytes)?;
        let acknowledge = self.namespace.library().rados_notify_ack;
        let (io, object) = (self.namespace.io(), self.object.as_ptr());
        // SAFETY: the handle is valid; name and bytes are copied. The cookie is only a number here, so the watch may
        // have ended.
        check(unsafe { acknowledge(io, object, self.id, self.cookie, bytes, len) })
    }
}

/// A watch of some client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Watcher {
    /// The client's [number](crate::Client::instance_id).
    pub client: u64,
    /// Distinguishes the watches of one client.
    pub cookie: u64,
}

/// A watcher's answer to a notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The watch that answered.
    pub watcher: Watcher,
    /// The bytes of the answer.
    pub payload: Vec<u8>,
}

/// The result of a notification. Both lists are empty if the object has no watchers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replies {
    /// The answers that arrived in time.
    pub replies: Vec<Reply>,
    /// Watches that did not answer in time.
    pub timed_out: Vec<Watcher>,
}

impl Pool {
    /// Watches an object; returns once the watch is established. The cluster drops the watch if this client is silent
    /// for the timeout, in whole seconds, rounded up; the default is the cluster's.
    ///
    /// A thread of librados calls both functions, and they must not wait. After an error, notifications may have been
    /// missed, and the watch is no longer usable.
    ///
    /// # Errors
    /// `NotFound` if there is no object.
    pub fn watch(
        &self,
        object: &str,
        timeout: Option<Duration>,
        on_notify: impl Fn(Notification) + Send + Sync + 'static,
        on_error: impl Fn(io::Error) + Send + Sync + 'static,
    ) -> io::Result<Watch> {
        may_wait()?;
        let object = Arc::new(c_string(object)?);
        let seconds = timeout
            .map_or(0, whole_seconds)
            .try_into()
            .unwrap_or(u32::MAX);
        let watching = Box::into_raw(Box::new(Watching {
            namespace: Arc::clone(&self.namespace),
            object: Arc::clone(&object),
            on_notify: Box::new(on_notify),
            on_error: Box::new(on_error),
        }));
        let mut cookie = 0;
        // SAFETY: the handle is valid, and the name is copied. The argument is what both functions want, and stays
        // until the watch has ended.
        let watched = unsafe {
            (self.library().rados_watch3)(
                self.namespace.io(),
                object.as_ptr(),
                &mut cookie,
                on_notification,
                on_watch_error,
                seconds,
                watching.cast::<c_void>(),
            )
        };
        if let Err(error) = check(watched) {
            // SAFETY: there is no watch, so librados does not use it any more.
            drop(unsafe { Box::from_raw(watching) });
            return Err(error);
        }
        Ok(Watch {
            namespace: Arc::clone(&self.namespace),
            cookie,
            watching,
        })
    }

    /// Notifies all watchers of an object. Ends when all have answered, or after the timeout, in whole seconds, rounded
    /// up.
    pub fn notify(
        &self,
        object: &str,
        payload: &[u8],
        timeout: Duration,
        on_done: impl FnOnce(io::Result<Replies>) + Send + 'static,
    ) {
        let buffer = ReplyBuffer {
            library: self.library(),
            at: Slot::new(null_mut()),
            len: Slot::new(0),
        };
        let on_end =
            |ended: io::Result<Version>, buffer: ReplyBuffer| on_done(buffer.replies(ended));
        let (object, (bytes, len)) = match (c_string(object), notified(payload)) {
            (Ok(object), Ok(payload)) => (object, payload),
            (Err(error), _) | (_, Err(error)) => return refuse(error, buffer, on_end),
        };
        // The cluster counts seconds, and replaces zero by its default.
        let milliseconds = whole_seconds(timeout).saturating_mul(1000);
        let (at, reply_len) = (buffer.at.as_ptr(), buffer.len.as_ptr());
        let start = |library: &Library, io: IoContext, completion: Completion| {
            let (notify, object) = (library.rados_aio_notify, object.as_ptr());
            // SAFETY: all handles are valid; name and payload are copied. The output memory belongs to the operation.
            unsafe {
                notify(
                    io,
                    object,
                    completion,
                    bytes,
                    len,
                    milliseconds,
                    at,
                    reply_len,
                )
            }
        };
        submit(&self.namespace, buffer, start, on_end);
    }

    /// Like [`Pool::notify`], but waits for the end.
    pub fn notify_now(
        &self,
        object: &str,
        payload: &[u8],
        timeout: Duration,
    ) -> io::Result<Replies> {
        Wait::of(|on_done| self.notify(object, payload, timeout, on_done))
    }
}

impl Watch {
    /// How long ago the cluster last confirmed the watch.
    ///
    /// # Errors
    /// An error if the watch has ended.
    pub fn check(&self) -> io::Result<Duration> {
        let check_watch = self.namespace.library().rados_watch_check;
        // SAFETY: the handle is valid, and the watch is there until it is dropped.
        let result = unsafe { check_watch(self.namespace.io(), self.cookie) };
        check(result)?;
        Ok(Duration::from_millis(result.unsigned_abs().into()))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let ended = EndedWatch {
            namespace: Arc::clone(&self.namespace),
            cookie: self.cookie,
            watching: self.watching,
        };
        callback::wait_elsewhere(move || ended.free());
    }
}

/// A dropped watch, for the thread that ends it.
struct EndedWatch {
    namespace: Arc<Namespace>,
    cookie: u64,
    watching: *mut Watching,
}

// SAFETY: see `Watch`.
unsafe impl Send for EndedWatch {}

impl EndedWatch {
    fn free(self) {
        let library = self.namespace.library();
        // SAFETY: the watch exists here, whether the cluster still knows it or not: an error of the first call means
        // that it did not. After the second call, librados no longer calls the callbacks, so this is the box's only
        // owner.
        unsafe {
            (library.rados_unwatch2)(self.namespace.io(), self.cookie);
            (library.rados_watch_flush)(self.namespace.session.cluster);
            drop(Box::from_raw(self.watching));
        }
    }
}

/// Called by librados for each notification.
unsafe extern "C" fn on_notification(
    argument: *mut c_void,
    id: u64,
    cookie: u64,
    notifier: u64,
    data: *mut c_void,
    len: usize,
) {
    callback::run(|| {
        // SAFETY: the argument belongs to a watch that has not ended.
        let watching = unsafe { &*argument.cast::<Watching>() };
        let payload = if data.is_null() || len == 0 {
            Vec::new()
        } else {
            // SAFETY: librados keeps `len` bytes there during this call.
            unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec()
        };
        (watching.on_notify)(Notification {
            namespace: Arc::clone(&watching.namespace),
            object: Arc::clone(&watching.object),
            id,
            cookie,
            notifier,
            payload,
        });
    });
}

/// Called by librados when a watch was lost.
unsafe extern "C" fn on_watch_error(argument: *mut c_void, _cookie: u64, error: c_int) {
    callback::run(|| {
        // SAFETY: the argument belongs to a watch that has not ended.
        let watching = unsafe { &*argument.cast::<Watching>() };
        let error = check(error).err();
        (watching.on_error)(error.unwrap_or_else(|| io::ErrorKind::NotConnected.into()));
    });
}

/// The replies, in memory of librados.
struct ReplyBuffer {
    library: &'static Library,
    at: Slot<*mut c_char>,
    len: Slot<usize>,
}

// SAFETY: only the operation uses the memory, and afterwards its owner.
unsafe impl Send for ReplyBuffer {}

impl ReplyBuffer {
    /// If a watcher does not answer, librados returns an error, but also the replies of the others.
    fn replies(&self, ended: io::Result<Version>) -> io::Result<Replies> {
        let (at, len) = (self.at.get(), self.len.get());
        if at.is_null() {
            return ended.map(|_| Replies::default());
        }
        match ended {
            Err(error) if error.kind() != io::ErrorKind::TimedOut => Err(error),
            // SAFETY: the operation has ended, and librados has put `len` bytes there.
            _ => decode(unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) })
                .ok_or_else(|| io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Drop for ReplyBuffer {
    fn drop(&mut self) {
        if !self.at.get().is_null() {
            // SAFETY: the buffer comes from librados, and this is its only owner.
            unsafe { (self.library.rados_buffer_free)(self.at.get()) };
        }
    }
}

/// A payload with its length as librados takes it.
fn notified(bytes: &[u8]) -> io::Result<(*const c_char, c_int)> {
    let (bytes, len) = parts(bytes);
    let len = c_int::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok((bytes, len))
}

fn whole_seconds(time: Duration) -> u64 {
    let is_partial = time.subsec_nanos() > 0;
    time.as_secs().saturating_add(is_partial.into()).max(1)
}

/// Decodes replies, which the header describes at rados_notify2.
fn decode(mut bytes: &[u8]) -> Option<Replies> {
    let mut found = Replies::default();
    for _ in 0..take_u32(&mut bytes)? {
        let watcher = take_watcher(&mut bytes)?;
        let len = usize::try_from(take_u32(&mut bytes)?).ok()?;
        let (payload, rest) = bytes.split_at_checked(len)?;
        bytes = rest;
        let payload = payload.to_vec();
        found.replies.push(Reply { watcher, payload });
    }
    for _ in 0..take_u32(&mut bytes)? {
        found.timed_out.push(take_watcher(&mut bytes)?);
    }
    Some(found)
}

fn take_watcher(bytes: &mut &[u8]) -> Option<Watcher> {
    let client = u64::from_le_bytes(*take(bytes)?);
    let cookie = u64::from_le_bytes(*take(bytes)?);
    Some(Watcher { client, cookie })
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    take(bytes).map(|number| u32::from_le_bytes(*number))
}

fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded() -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend([7_u64, 8].map(u64::to_le_bytes).concat());
        bytes.extend(2_u32.to_le_bytes());
        bytes.extend(b"ok");
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend([9_u64, 10].map(u64::to_le_bytes).concat());
        bytes
    }

    #[test]
    fn replies_and_those_who_gave_none_are_told_apart() {
        let found = decode(&encoded()).unwrap();
        let watcher = |client, cookie| Watcher { client, cookie };
        assert_eq!(found.replies[0].watcher, watcher(7, 8));
        assert_eq!(found.replies[0].payload, b"ok");
        assert_eq!(found.timed_out, [watcher(9, 10)]);
    }

    #[test]
    fn replies_that_are_cut_off_are_refused() {
        let bytes = encoded();
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), None, "{len}");
        }
        assert_eq!(decode(&[0xff; 64]), None);
    }

    #[test]
    fn a_timeout_is_never_none() {
        assert_eq!(whole_seconds(Duration::ZERO), 1);
        assert_eq!(whole_seconds(Duration::from_millis(1001)), 2);
        assert_eq!(whole_seconds(Duration::MAX), u64::MAX);
    }
}
