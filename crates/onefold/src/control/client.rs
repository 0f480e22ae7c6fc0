//! The command line's end of the control socket.

use super::frame::{Flow, PieceBody, PieceDecoder};
use super::{Event, NOT_UNDERSTOOD, REQUEST_HEADER, SIZE_HEADER, other_socket_paths, socket_path};
use crate::limits::{ANSWER_PATIENCE, TRANSFERS_MAX};
use crate::output::Output;
use bytes::{Buf, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::header::HeaderValue;
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use onefold_api::transfer::{Export, IMPORT_PATH, VolumeImport, VolumeImportReply};
use onefold_api::transfer::{Piece, PieceReceiver, PieceSender, transfer};
use onefold_api::{Error, ErrorKind, Result};
use onefold_api::{Report, Request, Versioned};
use serde::de::{DeserializeOwned, IgnoredAny};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::thread;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};

/// The longest line of an answer, such as a list of all findings or volumes.
const LINE_BYTES_MAX: usize = 64 << 20;

/// A connection to a daemon that has answered. Each request opens its own socket.
pub(crate) struct ControlClient {
    socket: PathBuf,
    /// The daemon's name for messages.
    daemon: String,
    output: Output,
}

impl ControlClient {
    /// Verifies that a daemon answers on the pool's control socket, in any of the socket's possible
    /// directories.
    pub(crate) fn connect(pool: &Path, daemon: &str, output: &Output) -> io::Result<Self> {
        let answers =
            |socket: &PathBuf| std::os::unix::net::UnixStream::connect(socket).map(|_| ());
        let mut socket = socket_path(pool);
        if let Err(error) = answers(&socket) {
            let mut others = other_socket_paths(pool).into_iter();
            socket = others.find(|path| answers(path).is_ok()).ok_or(error)?;
        }
        Ok(Self {
            socket,
            daemon: daemon.to_owned(),
            output: *output,
        })
    }

    /// Sends a request to the daemon, which carries it out.
    pub(crate) fn call<R: Request>(&self, asked: &R, report: Report<'_>) -> Result<R::Reply> {
        let body = Full::new(json(asked)?);
        runtime()?.block_on(async {
            let answer = self.send(request(R::PATH, body)?, &Flow::default()).await?;
            read_events(answer.into_body(), report).await
        })
    }

    /// Sends an image from which the daemon creates a volume.
    pub(crate) fn import(
        &self,
        import: &VolumeImport,
        pieces: PieceReceiver,
    ) -> Result<VolumeImportReply> {
        let header = HeaderValue::from_maybe_shared(json(import)?)
            .map_err(|_| Error::usage("the volume's name cannot be sent"))?;
        let body = PieceBody::new(pieces);
        let flow = body.flow();
        let mut request = request(IMPORT_PATH, body)?;
        request.headers_mut().insert(REQUEST_HEADER, header);
        runtime()?.block_on(async {
            let answer = self.send(request, &flow).await?;
            read_events(answer.into_body(), &mut |_, _| {}).await
        })
    }

    /// Requests an export; returns its size and a receiver of its pieces.
    pub(crate) fn export<E: Export>(&self, export: &E) -> Result<(u64, PieceReceiver)> {
        let body = Full::new(json(export)?);
        let runtime = runtime()?;
        let request = request(E::PATH, body)?;
        let answer = runtime.block_on(self.send(request, &Flow::default()))?;
        if answer.status() != StatusCode::OK {
            let refused = runtime.block_on(async {
                read_events::<IgnoredAny>(answer.into_body(), &mut |_, _| {}).await
            });
            return Err(refused.err().unwrap_or_else(not_understood));
        }
        let size = answer
            .headers()
            .get(SIZE_HEADER)
            .and_then(|size| size.to_str().ok());
        let size_bytes = size
            .and_then(|size| size.parse().ok())
            .ok_or_else(not_understood)?;
        let (sender, receiver) = transfer();
        thread::spawn(move || runtime.block_on(receive_pieces(answer.into_body(), sender)));
        Ok((size_bytes, receiver))
    }

    /// Sends a request and waits for the head of the reply. If the wait is long, and not because the image
    /// arrives slowly, prints a note once.
    async fn send<B>(&self, request: hyper::Request<B>, flow: &Flow) -> Result<Response<Incoming>>
    where
        B: Body<Data = Bytes, Error = std::convert::Infallible> + Send + 'static,
    {
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|e| self.lost(&e))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| self.lost(&e))?;
        // A failure of the connection shows in the answer, or in its absence.
        tokio::spawn(connection);
        let mut answer = pin!(sender.send_request(request));
        let mut seen = flow.look();
        loop {
            match tokio::time::timeout(ANSWER_PATIENCE, &mut answer).await {
                Ok(answer) => return answer.map_err(|e| self.lost(&e)),
                Err(_) if flow.stands_still(&mut seen) => break,
                Err(_) => {}
            }
        }
        self.output.note(format_args!(
            "still waiting for {}, which has the pool open: it is starting, at work on this, or busy \
             with other commands, of which {TRANSFERS_MAX} imports and exports at a time",
            self.daemon
        ));
        answer.await.map_err(|e| self.lost(&e))
    }

    fn lost(&self, cause: &dyn std::error::Error) -> Error {
        let message = format!("lost the daemon at {}: {cause}", self.socket.display());
        Error::new(ErrorKind::Lost, message)
    }
}

/// Creates a runtime for code that waits for the socket. Progress bars and files may block it.
fn runtime() -> Result<Runtime> {
    let built = Builder::new_current_thread().enable_all().build();
    built.map_err(|e| Error::io("cannot talk to the daemon", &e))
}

fn json(request: &impl serde::Serialize) -> Result<Bytes> {
    let json = serde_json::to_vec(request).map(Bytes::from);
    json.map_err(|e| Error::failed(format!("cannot send the request: {e}")))
}

fn request<B>(path: &str, body: B) -> Result<hyper::Request<B>> {
    let request = hyper::Request::post(path)
        .header(hyper::header::HOST, "onefold")
        .body(body);
    request.map_err(|e| Error::failed(format!("cannot send the request: {e}")))
}

/// Adds a hint to an error: a daemon of another release may not know the request or one of its fields.
fn of_version(mut error: Error) -> Error {
    if error.kind == ErrorKind::Usage && error.message.starts_with(NOT_UNDERSTOOD) {
        error.message += "; the daemon is of another version than this command, so restart it";
    }
    error
}

fn not_understood() -> Error {
    Error::failed(
        "cannot understand the daemon's answer; the daemon may be of another version than this \
         command, so restart it",
    )
}

fn ended_early() -> Error {
    Error::new(
        ErrorKind::Lost,
        "the daemon ended before it answered; once it runs again, 'onefold volume list' shows \
         whether this was done",
    )
}

/// Reads an answer to its last line.
async fn read_events<R: DeserializeOwned>(mut body: Incoming, report: Report<'_>) -> Result<R> {
    let mut received = BytesMut::new();
    loop {
        while let Some(end) = received.iter().position(|byte| *byte == b'\n') {
            let line = received.split_to(end);
            received.advance(1);
            match serde_json::from_slice(&line).map_err(|_| not_understood())? {
                Event::Progress { done, all } => report(done, all),
                Event::Result(result) => return Ok(Versioned::into_document(result)),
                Event::Error(error) => return Err(of_version(error)),
            }
        }
        let frame = body
            .frame()
            .await
            .ok_or_else(ended_early)?
            .map_err(|_| ended_early())?;
        if let Ok(data) = frame.into_data() {
            if received.len() + data.len() > LINE_BYTES_MAX {
                return Err(not_understood());
            }
            received.extend_from_slice(&data);
        }
    }
}

/// Forwards an export's pieces until it is complete or the receiver has gone.
async fn receive_pieces(mut body: Incoming, pieces: PieceSender) {
    let mut decoder = PieceDecoder::default();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(mut input) = frame.into_data() else {
            continue;
        };
        while let Some(piece) = decoder.next(&mut input).transpose() {
            let last = !matches!(piece, Ok(Piece::Data(_)));
            if pieces.send(piece).await.is_err() || last {
                return;
            }
        }
    }
}
