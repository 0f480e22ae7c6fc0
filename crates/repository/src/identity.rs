//! The repository's identity: one object, and a copy with the same bytes. They are covered only by a checksum,
//! because they say how all other objects are protected.

use std::path::Path;

use onefold_format::backup::{ObjectName, RepositoryObject};

use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::Folder;
use crate::objects::Objects;

/// The object and its copy.
const IDENTITY: [ObjectName; 2] = [ObjectName::Repository, ObjectName::RepositoryCopy];

/// Reads the object of the repository, or its copy if the object is missing or damaged. If both are readable they must
/// agree, so that changing only one of them cannot change the repository.
pub(crate) fn identity(root: &Path) -> Result<(Folder, RepositoryObject)> {
    let none = || {
        let message =
            format!("there is no repository in {root:?}; 'onefold backup init' makes one");
        RepositoryError::new(RepositoryErrorKind::NotFound, message)
    };
    let folder = Folder::open(root).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => none(),
        _ => RepositoryError::io(format_args!("cannot open the repository {root:?}"), &error),
    })?;
    let [object, copy] = IDENTITY.map(|name| identity_in(&folder, name));
    let is_absent = |read: &Result<RepositoryObject>| {
        let error = read.as_ref().err();
        error.is_some_and(|error| error.kind() == RepositoryErrorKind::NotFound)
    };
    let object = match (object, copy) {
        (Ok(object), Ok(copy)) if object != copy => {
            let [object, copy] = IDENTITY.map(ObjectName::path);
            let message = format!(
                "objects {object} and {copy} of the repository {root:?} contradict each other: one of them was \
                 changed, or is of another repository, and nothing was read or written; find out who did that, \
                 then put the right one in the place of the other"
            );
            Err(RepositoryError::new(RepositoryErrorKind::Damaged, message))
        }
        (object, copy) if is_absent(&object) && is_absent(&copy) => Err(none()),
        // An object of a newer version is not damaged.
        (Err(error), _) if !error.is_of_object() => Err(error),
        (Err(_), Ok(copy)) => Ok(copy),
        (object, _) => object,
    };
    Ok((folder, object?))
}

fn identity_in(folder: &Folder, name: ObjectName) -> Result<RepositoryObject> {
    let path = name.path();
    let bytes = folder.read(&path).map_err(|e| {
        RepositoryError::io(
            format_args!("cannot read object {path} of the repository"),
            &e,
        )
    })?;
    RepositoryObject::decode(&bytes).map_err(|e| RepositoryError::format(&path, e))
}

/// Errors of the repository's object and of its copy.
pub(crate) fn wrong_identity(objects: &Objects) -> Vec<(ObjectName, RepositoryError)> {
    let wrong = IDENTITY.into_iter().filter_map(|name| {
        let error = match identity_in(objects.folder(), name) {
            Ok(object) if object == *objects.identity() => return None,
            Ok(_) => RepositoryError::damaged(&name.path(), "it is of another repository"),
            Err(error) if error.kind() == RepositoryErrorKind::NotFound => {
                RepositoryError::damaged(&name.path(), "it is not there")
            }
            Err(error) => error,
        };
        Some((name, error))
    });
    wrong.collect()
}

/// Writes the object of the repository, or its copy, again if it is missing or damaged. Returns how many were
/// written.
pub(crate) fn mend_identity(objects: &Objects) -> Result<u64> {
    let mut mended = 0;
    for (name, error) in wrong_identity(objects) {
        // An object of a newer version is not damaged.
        if !error.is_of_object() {
            continue;
        }
        objects.put_over(name, &objects.identity().encode())?;
        mended += 1;
    }
    Ok(mended)
}
