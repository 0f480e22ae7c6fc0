//! The framing of image pieces on the control socket.
//!
//! A frame is `[u64 offset][u32 length][bytes]`, with little-endian numbers. Length 0 ends the image; the
//! offset is then the image's size. The offset [`OFFSET_OF_ERROR`] marks a failure of the sender; the bytes
//! are then an [`Error`] as JSON. A stream that ends with neither was interrupted.

use bytes::{Buf, Bytes, BytesMut};
use hyper::body::{Body, Frame};
use onefold_api::limits::TRANSFER_CHUNK_BYTES;
use onefold_api::transfer::{Chunk, ChunkPool, Piece, PieceReceiver};
use onefold_api::{Error, Result};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

/// Length of a frame's header.
const HEADER_BYTES: usize = 12;

/// The offset that marks an error; no image reaches it.
const OFFSET_OF_ERROR: u64 = u64::MAX;

fn header(offset: u64, len: usize) -> Bytes {
    let mut header = [0; HEADER_BYTES];
    let (offset_bytes, len_bytes) = header.split_at_mut(8);
    offset_bytes.copy_from_slice(&offset.to_le_bytes());
    // Chunks and messages are much smaller than 4 GiB; see `TRANSFER_CHUNK_BYTES`.
    len_bytes.copy_from_slice(&(len as u32).to_le_bytes());
    Bytes::copy_from_slice(&header)
}

/// The progress of a request's body, for the code that waits for the reply.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flow(Arc<FlowState>);

#[derive(Debug, Default)]
struct FlowState {
    /// Number of frames that the connection has taken.
    taken: AtomicU64,
    /// Whether the connection waits for another frame.
    is_short: AtomicBool,
}

impl Flow {
    pub(crate) fn look(&self) -> u64 {
        self.0.taken.load(Ordering::Relaxed)
    }

    /// Whether the connection took no frame since the last call although one was available, or has taken all
    /// of them.
    pub(crate) fn stands_still(&self, seen: &mut u64) -> bool {
        let before = std::mem::replace(seen, self.look());
        before == *seen && !self.0.is_short.load(Ordering::Relaxed)
    }
}

/// Pieces as the body of an HTTP message.
pub(crate) struct PieceBody {
    pieces: PieceReceiver,
    flow: Flow,
    /// The bytes that follow the last header.
    payload: Option<Bytes>,
}

impl PieceBody {
    pub(crate) fn new(pieces: PieceReceiver) -> Self {
        Self {
            pieces,
            flow: Flow::default(),
            payload: None,
        }
    }

    pub(crate) fn flow(&self) -> Flow {
        self.flow.clone()
    }

    fn encode(&mut self, piece: Result<Piece>) -> Bytes {
        let (offset, payload) = match piece {
            Ok(Piece::End { image_bytes }) => return header(image_bytes, 0),
            // The socket sends the chunk's buffer without copying it; dropping it returns the buffer to its
            // pool.
            Ok(Piece::Data(chunk)) => (chunk.offset, Bytes::from_owner(chunk)),
            Err(error) => (OFFSET_OF_ERROR, error_bytes(&error)),
        };
        let header = header(offset, payload.len());
        self.payload = Some(payload);
        header
    }
}

fn error_bytes(error: &Error) -> Bytes {
    let mut bytes = serde_json::to_vec(error).unwrap_or_default();
    // An error too long for a frame is cut and then no longer valid JSON, which the receiver handles.
    bytes.truncate(TRANSFER_CHUNK_BYTES);
    Bytes::from(bytes)
}

impl Body for PieceBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        if let Some(payload) = self.payload.take() {
            return Poll::Ready(Some(Ok(Frame::data(payload))));
        }
        let received = self.pieces.poll_recv(cx);
        let flow = &self.flow.0;
        flow.taken.fetch_add(1, Ordering::Relaxed);
        flow.is_short
            .store(received.is_pending(), Ordering::Relaxed);
        received.map(|received| {
            let piece = received?;
            Some(Ok(Frame::data(self.encode(piece))))
        })
    }
}

/// Decodes frames into pieces, however the bytes were split in transit.
#[derive(Default)]
pub(crate) struct PieceDecoder {
    pool: ChunkPool,
    header: BytesMut,
    /// The frame that is being received.
    frame: Option<Arriving>,
}

struct Arriving {
    chunk: Chunk,
    filled: usize,
}

impl PieceDecoder {
    /// Consumes bytes from the front of `input` up to the end of a piece, or all of them.
    pub(crate) fn next(&mut self, input: &mut Bytes) -> Result<Option<Piece>> {
        while !input.is_empty() {
            let arriving = match &mut self.frame {
                Some(arriving) => arriving,
                None => {
                    let missing = HEADER_BYTES - self.header.len();
                    self.header
                        .extend_from_slice(&input.split_to(missing.min(input.len())));
                    if self.header.len() < HEADER_BYTES {
                        break;
                    }
                    let offset = self.header.get_u64_le();
                    let len = self.header.get_u32_le() as usize;
                    if len == 0 {
                        return Ok(Some(Piece::End {
                            image_bytes: offset,
                        }));
                    }
                    if len > TRANSFER_CHUNK_BYTES {
                        return Err(Error::failed(format!(
                            "the other end of the control socket sent a frame of {len} bytes"
                        )));
                    }
                    let mut chunk = self.pool.take(offset);
                    chunk.set_len(len);
                    self.frame.insert(Arriving { chunk, filled: 0 })
                }
            };
            let gap = arriving
                .chunk
                .as_mut()
                .get_mut(arriving.filled..)
                .unwrap_or_default();
            let len = gap.len().min(input.len());
            if let Some(gap) = gap.get_mut(..len) {
                input.copy_to_slice(gap);
            }
            arriving.filled += len;
            if arriving.filled == arriving.chunk.as_ref().len() {
                return self
                    .frame
                    .take()
                    .map(|complete| into_piece(complete.chunk))
                    .transpose();
            }
        }
        Ok(None)
    }
}

fn into_piece(chunk: Chunk) -> Result<Piece> {
    if chunk.offset != OFFSET_OF_ERROR {
        return Ok(Piece::Data(chunk));
    }
    Err(serde_json::from_slice(chunk.as_ref())
        .unwrap_or_else(|_| Error::failed("the other end of the control socket failed")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use onefold_api::transfer::transfer;

    /// Encodes pieces and feeds the bytes to a decoder in parts of `part` bytes.
    fn through_the_wire(pieces: Vec<Result<Piece>>, part: usize) -> Vec<Result<Piece>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let (sender, receiver) = transfer();
        let wire = runtime.block_on(async {
            for piece in pieces {
                sender.send(piece).await.unwrap();
            }
            drop(sender);
            PieceBody::new(receiver).collect().await.unwrap().to_bytes()
        });
        let mut decoder = PieceDecoder::default();
        let mut decoded = Vec::new();
        for part in wire.chunks(part) {
            let mut input = Bytes::copy_from_slice(part);
            while let Some(piece) = decoder.next(&mut input).transpose() {
                decoded.push(piece);
            }
        }
        decoded
    }

    fn data(offset: u64, bytes: &[u8]) -> Piece {
        let mut chunk = ChunkPool::default().take(offset);
        chunk.set_len(bytes.len());
        chunk.as_mut().copy_from_slice(bytes);
        Piece::Data(chunk)
    }

    #[test]
    fn pieces_survive_any_cutting() {
        for part in [1, 2, 11, 12, 13, 100, 1 << 20] {
            let sent = vec![
                Ok(data(4096, b"one")),
                Ok(data(1 << 40, &[7; 5000])),
                Err(Error::usage("no")),
                Ok(Piece::End { image_bytes: 99 }),
            ];
            let received = through_the_wire(sent, part);
            let [
                Ok(Piece::Data(one)),
                Ok(Piece::Data(two)),
                Err(error),
                Ok(end),
            ] = &received[..]
            else {
                panic!("with parts of {part}: {received:?}");
            };
            assert_eq!((one.offset, one.as_ref()), (4096, &b"one"[..]));
            assert_eq!((two.offset, two.as_ref()), (1 << 40, &[7; 5000][..]));
            assert_eq!(*error, Error::usage("no"));
            assert!(matches!(end, Piece::End { image_bytes: 99 }));
        }
    }

    #[test]
    fn a_frame_larger_than_a_chunk_is_refused_before_memory_is_taken() {
        let mut input = Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 16, 0]);
        assert!(PieceDecoder::default().next(&mut input).is_err());
    }
}
