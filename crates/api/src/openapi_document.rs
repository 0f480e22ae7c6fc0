//! Generates the OpenAPI document of the control socket from the requests.

use serde_json::{Value, json};
use utoipa::openapi::content::Content;
use utoipa::openapi::extensions::ExtensionsBuilder;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, PathItem, Paths};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{AllOfBuilder, Object, ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::openapi::{
    Components, ComponentsBuilder, InfoBuilder, OpenApi, OpenApiBuilder, OpenApiVersion,
    PathsBuilder, Ref, RefOr, Required, ResponseBuilder, ResponsesBuilder,
};
use utoipa::{PartialSchema, ToSchema};

use crate::backup::{RepositoryVerb, RepositoryVisitor, visit_repository_verbs};
use crate::error::Error;
use crate::request::{Request, SCHEMA_VERSION};
use crate::requests::{Visitor, visit_requests};
use crate::transfer::{
    Export, IMPORT_PATH, MetadataExport, VolumeExport, VolumeImport, VolumeImportReply,
};

/// Parts of requests and replies whose fields are listed with those of the whole. Without this, each would
/// be a schema of its own.
const INLINED: [&str; 11] = [
    "SettingsChange",
    // A part of the next one.
    "VolumeSettings",
    "VolumeFigures",
    "InlineStat",
    "PoolFigures",
    "SnapshotStat",
    "DeletionStat",
    "CheckReport",
    "RestoredBytes",
    "Repaired",
    "Verified",
];

/// The extension of the document that lists commands without a route.
const COMMANDS: &str = "x-commands";

/// Content type of answers: one line of JSON per event.
const LINES: &str = "application/jsonl";

/// Content type of image data, in the pieces that the control socket's module describes.
const PIECES: &str = "application/octet-stream";

/// Generates the OpenAPI document for this version of onefold.
#[must_use]
pub fn document(version: &str) -> OpenApi {
    let mut builder = Builder {
        paths: PathsBuilder::new(),
        schemas: Vec::new(),
        commands: serde_json::Map::new(),
    };
    builder.schema::<Error>();
    visit_requests(&mut builder);
    builder.import();
    builder.export::<VolumeExport>();
    builder.export::<MetadataExport>();
    visit_repository_verbs(&mut builder);
    let info = InfoBuilder::new()
        .title("onefold")
        .version(version)
        .description(Some(
            "Requests to the daemon over the pool's control socket. Each is a POST with a JSON body; the \
             answer is a line of JSON for each event: any number of progress reports, then a result or an \
             error. The commands under x-commands have no route: the command line carries them out in its own \
             process and prints their replies as JSON documents.",
        ));
    let mut document = OpenApiBuilder::new()
        // OpenAPI describes answers of several lines since this version.
        .openapi(OpenApiVersion::Version32)
        .info(info.build())
        .paths(builder.paths.build())
        .components(Some(components(builder.schemas)))
        .build();
    let commands = ExtensionsBuilder::new().add(COMMANDS, Value::Object(builder.commands));
    document.extensions = Some(commands.build());
    document
}

fn components(mut schemas: Vec<(String, RefOr<Schema>)>) -> Components {
    schemas.sort_by(|(one, _), (other, _)| one.cmp(other));
    schemas.dedup_by(|(one, _), (other, _)| one == other);
    for part in INLINED {
        inline(part, &mut schemas);
    }
    ComponentsBuilder::new().schemas_from_iter(schemas).build()
}

/// Lists the fields of a part in the schemas that have it, and removes its own schema.
fn inline(part: &str, schemas: &mut Vec<(String, RefOr<Schema>)>) {
    let Some(at) = schemas.iter().position(|(name, _)| name == part) else {
        return;
    };
    if let (_, RefOr::T(Schema::Object(fields))) = schemas.remove(at) {
        let reference = Ref::from_schema_name(part).ref_location;
        for (_, schema) in schemas {
            if let RefOr::T(whole) = schema {
                list_fields(&fields, &reference, whole);
            }
        }
    }
}

/// Lists fields in the schema that refers to them, if this one does.
fn list_fields(fields: &Object, reference: &str, whole: &mut Schema) {
    let Schema::AllOf(parts) = whole else { return };
    let refers =
        |part: &RefOr<Schema>| matches!(part, RefOr::Ref(to) if to.ref_location == reference);
    let Some(at) = parts.items.iter().position(refers) else {
        return;
    };
    parts.items.remove(at);
    let mut own = match parts.items.pop() {
        Some(RefOr::T(Schema::Object(own))) => own,
        other => {
            parts.items.extend(other);
            Object::new()
        }
    };
    own.properties.extend(fields.properties.clone());
    own.required.extend_from_slice(&fields.required);
    if parts.items.is_empty() {
        own.description = parts.description.take();
        *whole = Schema::Object(own);
    } else {
        parts.items.push(RefOr::T(Schema::Object(own)));
    }
}

struct Builder {
    paths: PathsBuilder,
    schemas: Vec<(String, RefOr<Schema>)>,
    /// Request and reply of each command that has no route.
    commands: serde_json::Map<String, Value>,
}

impl RepositoryVisitor for Builder {
    fn verb<V: RepositoryVerb>(&mut self) {
        self.schema::<V>();
        self.schema::<V::Reply>();
        let command = json!({
            "request": reference::<V>(),
            "reply": reference::<V::Reply>(),
        });
        self.commands.insert(V::NAME.to_owned(), command);
    }
}

impl Visitor for Builder {
    fn request<R: Request>(&mut self) {
        self.schema::<R>();
        self.schema::<R::Reply>();
        let body = RequestBodyBuilder::new()
            .required(Some(Required::True))
            .content("application/json", content(reference::<R>()))
            .build();
        self.operation::<R>(R::PATH, body, LINES, Some(events(reference::<R::Reply>())));
    }
}

impl Builder {
    fn schema<T: ToSchema>(&mut self) {
        self.schemas.push((T::name().into_owned(), T::schema()));
        T::schemas(&mut self.schemas);
    }

    fn import(&mut self) {
        self.schema::<VolumeImport>();
        self.schema::<VolumeImportReply>();
        let body = RequestBodyBuilder::new()
            .required(Some(Required::True))
            .description(Some(
                "The image, in pieces; the request itself is the header onefold-request.",
            ))
            .content(PIECES, Content::default())
            .build();
        let events = events(reference::<VolumeImportReply>());
        self.operation::<VolumeImport>(IMPORT_PATH, body, LINES, Some(events));
    }

    fn export<E: Export>(&mut self) {
        self.schema::<E>();
        let body = RequestBodyBuilder::new()
            .required(Some(Required::True))
            .content("application/json", content(reference::<E>()))
            .build();
        self.operation::<E>(E::PATH, body, PIECES, None);
    }

    /// Adds a POST to `path`, described like the type of its request.
    fn operation<T: PartialSchema>(
        &mut self,
        path: &str,
        body: RequestBody,
        answer_type: &str,
        answer: Option<Schema>,
    ) {
        let id = path.trim_start_matches("/v1/").replace(['/', '-'], "_");
        let tag = id.split('_').next().unwrap_or_default().to_owned();
        let answer = Content::builder().item_schema(answer).build();
        let refusal = ResponseBuilder::new()
            .description(
                "The request was refused or failed: an error event, kind and message in it",
            )
            .content(
                LINES,
                Content::builder().item_schema(Some(failure())).build(),
            );
        let responses = ResponsesBuilder::new()
            .response(
                "200",
                ResponseBuilder::new()
                    .description("The events of the request")
                    .content(answer_type, answer),
            )
            .response("default", refusal);
        let operation = OperationBuilder::new()
            .operation_id(Some(id))
            .tag(tag)
            .summary(summary(&T::schema()))
            .request_body(Some(body))
            .responses(responses.build());
        let item = PathItem::new(HttpMethod::Post, operation.build());
        self.paths = std::mem::replace(&mut self.paths, Paths::builder()).path(path, item);
    }
}

fn content(schema: Ref) -> Content {
    Content::new(Some(schema))
}

fn reference<T: ToSchema>() -> Ref {
    Ref::from_schema_name(T::name())
}

/// The summary of a request: the description of its type.
fn summary(schema: &RefOr<Schema>) -> Option<String> {
    match schema {
        RefOr::T(Schema::Object(object)) => object.description.clone(),
        RefOr::T(Schema::AllOf(parts)) => parts.description.clone(),
        _ => None,
    }
}

/// The schema of one line of an answer: progress, result or error.
fn events(reply: Ref) -> Schema {
    let number = || ObjectBuilder::new().schema_type(Type::Integer);
    let version = ObjectBuilder::new()
        .property(
            "schema_version",
            number().enum_values(Some([SCHEMA_VERSION])),
        )
        .required("schema_version");
    let result = ObjectBuilder::new()
        .property("result", AllOfBuilder::new().item(version).item(reply))
        .required("result");
    let progress = ObjectBuilder::new()
        .property(
            "progress",
            ObjectBuilder::new()
                .property("done", number())
                .required("done")
                .property("all", number())
                .required("all"),
        )
        .required("progress");
    OneOfBuilder::new()
        .item(progress)
        .item(result)
        .item(failure())
        .into()
}

fn failure() -> Schema {
    ObjectBuilder::new()
        .property("error", reference::<Error>())
        .required("error")
        .into()
}
