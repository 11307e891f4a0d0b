//! How messages are put into bytes: prost, with small buffers.
//!
//! tonic gives every stream a buffer of 8 KiB for each direction and keeps both for the stream's
//! life. A session lives for weeks and says little; with 10,000 of them that would be 160 MB of
//! nothing. The buffers grow with the first message that needs it.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
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
    type Decoder = <ProstCodec<T, U> as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER, HAND_ON))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER, HAND_ON))
    }
}
