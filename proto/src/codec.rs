//! How messages are put into bytes: prost, with small buffers.
//!
//! tonic gives every stream a buffer of 8 KiB for each direction, lets it grow with the largest message, and keeps it for the stream's
//! life. A session lives for weeks: it says once what machine it is on, some 10 KiB, and little afterwards. With 10,000 of them that
//! would be 170 MB of nothing. So buffers start small, and one that a message was read from is left behind with the next.

use std::marker::PhantomData;

use prost::{
    Message,
    bytes::{Buf, Bytes},
};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder},
};
use tonic_prost::ProstCodec;

/// A heartbeat, an answer to one, most orders and reports fit.
const BUFFER: usize = 512;
/// tonic's own: bytes gathered before they are handed on.
const HAND_ON: usize = 32 << 10;

/// Named in `build.rs`; the generated code makes one per call.
#[derive(Clone, Debug)]
pub struct SmallBuffers<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallBuffers<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SmallBuffers<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = LeavesBuffers<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER, HAND_ON))
    }

    fn decoder(&mut self) -> Self::Decoder {
        LeavesBuffers { read: Bytes::new(), reads: PhantomData }
    }
}

/// Reads messages as prost's own decoder does, and makes the stream begin a new buffer after each.
#[derive(Debug)]
pub struct LeavesBuffers<U> {
    /// The last message's part of the stream's buffer. While somebody holds it the stream takes a new buffer, no larger than it needs;
    /// otherwise it would come back to the beginning of the old one.
    read: Bytes,
    reads: PhantomData<U>,
}

impl<U: Message + Default> Decoder for LeavesBuffers<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        self.read = buffer.copy_to_bytes(buffer.remaining());
        U::decode(self.read.clone()).map(Some).map_err(|e| Status::internal(e.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, HAND_ON)
    }
}
