//! Encodes messages with prost, using small buffers.
//!
//! tonic gives every stream a buffer of 8 KiB for each direction and keeps both for the life of the
//! stream. A session lives for weeks and says little; 10,000 of them would keep 160 MB of empty
//! buffers. A buffer grows with the first message that needs more.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::ProstCodec;

/// Bytes of a new buffer. A heartbeat, its answer, and most orders and reports fit.
const BUFFER: usize = 512;
/// Bytes that tonic gathers before it hands them on. tonic's own default.
const HAND_ON: usize = 32 << 10;

/// The codec that `build.rs` names; the generated code makes one for each call.
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
    type Decoder = <ProstCodec<T, U> as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER, HAND_ON))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER, HAND_ON))
    }
}
