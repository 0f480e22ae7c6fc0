//! The OpenAPI document of the control socket.
//!
//! The contract test generates the document from the requests, and the result is checked in, so the product
//! contains no code that generates it.

#[cfg(feature = "openapi")]
pub use crate::openapi_document::document;

/// Marks requests and replies that the OpenAPI document can describe. Without the feature `openapi`, every
/// type qualifies.
#[cfg(feature = "openapi")]
pub use utoipa::ToSchema as Described;

/// Marks requests and replies that the OpenAPI document can describe. Without the feature `openapi`, every
/// type qualifies.
#[cfg(not(feature = "openapi"))]
pub trait Described {}

#[cfg(not(feature = "openapi"))]
impl<T> Described for T {}

/// The checked-in document.
const AGREED: &str = include_str!("../openapi.json");

/// The document's version field, which is replaced by the version of onefold.
const VERSION: &str = "\"version\": \"1\"";

/// Returns the OpenAPI document for this version of onefold.
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
