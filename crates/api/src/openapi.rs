//! The OpenAPI document of the control socket.
//!
//! It is made from the requests themselves, by the contract test, and is part of the sources: the
//! product needs no code that makes it again.

#[cfg(feature = "openapi")]
pub use crate::openapi_document::document;

/// Of a request or reply: the document can describe it. Every type is, where no document is made.
#[cfg(feature = "openapi")]
pub use utoipa::ToSchema as Described;

/// Of a request or reply: the document can describe it. Every type is, where no document is made.
#[cfg(not(feature = "openapi"))]
pub trait Described {}

#[cfg(not(feature = "openapi"))]
impl<T> Described for T {}

/// The document that was agreed upon.
const AGREED: &str = include_str!("../openapi.json");

/// The place of the version in it.
const VERSION: &str = "\"version\": \"1\"";

/// The document for this version of onefold.
#[must_use]
pub fn json(version: &str) -> String {
    AGREED.replacen(VERSION, &format!("\"version\": \"{version}\""), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_version_differs() {
        let document: serde_json::Value = serde_json::from_str(&json("1.2.3")).unwrap();
        let mut agreed: serde_json::Value = serde_json::from_str(AGREED).unwrap();
        assert_eq!(document["info"]["version"], "1.2.3");
        assert_eq!(agreed["info"]["version"], "1");
        agreed["info"]["version"] = "1.2.3".into();
        assert_eq!(document, agreed);
    }
}
