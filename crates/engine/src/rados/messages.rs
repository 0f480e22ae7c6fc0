//! Messages between hosts, as notifications on heads and their replies.
//!
//! A reply names the session of the owner that sends it. So a former owner that still answers is not mistaken for the
//! present one.

/// Asks whether there is an owner.
pub(super) const ARE_YOU_THERE: &[u8] = b"are you there";

/// Asks the owner to give the estate up.
pub(super) const RELEASE: &[u8] = b"release";

/// The beginning of a call to an owner; the request follows.
const CALL: &[u8] = b"call\n";

const HERE: &str = "here ";
const RELEASING: &str = "releasing ";
const UNSERVED: &str = "unserved ";

/// The beginning of a reply to a call; the session, a line's end and the bytes follow.
const REPLY: &[u8] = b"reply ";

/// A question to the owner of an estate.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Question<'a> {
    AreYouThere,
    Release,
    Call(&'a [u8]),
}

/// An owner's answer to the question whether it is there.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Here,
    Releasing,
}

/// An owner's answer to a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Called<'a> {
    /// Nothing was done: it answers no calls.
    Unserved,
    Reply(&'a [u8]),
}

/// Reads a question. Returns nothing if this release does not know it.
pub(super) fn question(payload: &[u8]) -> Option<Question<'_>> {
    match payload {
        ARE_YOU_THERE => Some(Question::AreYouThere),
        RELEASE => Some(Question::Release),
        payload => payload.strip_prefix(CALL).map(Question::Call),
    }
}

/// A call to the owner of a group or a shard.
pub(super) fn call(request: &[u8]) -> Vec<u8> {
    [CALL, request].concat()
}

pub(super) fn presence(answer: &Presence, session: &str) -> Vec<u8> {
    let word = match answer {
        Presence::Here => HERE,
        Presence::Releasing => RELEASING,
    };
    format!("{word}{session}").into_bytes()
}

pub(super) fn called(answer: &Called<'_>, session: &str) -> Vec<u8> {
    match answer {
        Called::Unserved => format!("{UNSERVED}{session}").into_bytes(),
        Called::Reply(bytes) => [REPLY, session.as_bytes(), b"\n", bytes].concat(),
    }
}

/// Reads an owner's answer to the question whether it is there. Returns nothing if another session sent it.
pub(super) fn presence_of(payload: &[u8], session: &str) -> Option<Presence> {
    let said = std::str::from_utf8(payload).ok()?;
    let is_of = |word: &str| said.strip_prefix(word) == Some(session);
    match () {
        () if is_of(HERE) => Some(Presence::Here),
        () if is_of(RELEASING) => Some(Presence::Releasing),
        () => None,
    }
}

/// Reads an owner's session and its answer to a call.
pub(super) fn called_of(payload: &[u8]) -> Option<(&str, Called<'_>)> {
    if let Some(rest) = payload.strip_prefix(REPLY) {
        let at = rest.iter().position(|byte| *byte == b'\n')?;
        let session = std::str::from_utf8(&rest[..at]).ok()?;
        return Some((session, Called::Reply(&rest[at + 1..])));
    }
    let session = std::str::from_utf8(payload).ok()?.strip_prefix(UNSERVED)?;
    Some((session, Called::Unserved))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_holder_of_the_lock_answers_for_it() {
        let abc = |answer| presence_of(&presence(&answer, "abc"), "abc");
        assert_eq!(abc(Presence::Here), Some(Presence::Here));
        assert_eq!(abc(Presence::Releasing), Some(Presence::Releasing));
        for said in [&b"here abd"[..], b"here ", b"abc", b"\xff"] {
            assert_eq!(presence_of(said, "abc"), None);
        }
    }

    #[test]
    fn calls_and_their_replies_are_read_as_written() {
        let request = b"\xff\ncall\n";
        assert_eq!(question(&call(request)), Some(Question::Call(request)));
        assert_eq!(question(RELEASE), Some(Question::Release));
        assert_eq!(question(b"call"), None);
        for answer in [Called::Unserved, Called::Reply(b""), Called::Reply(request)] {
            let payload = called(&answer, "abc");
            assert_eq!(called_of(&payload), Some(("abc", answer)));
        }
        for said in [&b""[..], b"reply abc", b"reply \xff\n", b"here abc"] {
            assert_eq!(called_of(said), None);
        }
    }
}
