//! The streams of `Exec` and `Attach`.

use std::sync::Arc;

use prost::Message;

use super::abandoned::Lease;
use super::call::{CallError, Client, StreamReceiver, StreamSender};
use super::flow::Flow;
use crate::shim::{AttachInput, AttachOutput, attach_input::What, shim_service};

/// Bytes of input in one message.
const PIECE_BYTES_MAX: usize = 16 << 10;

/// Sends to a process. When both halves are dropped, the shim knows that this client has gone: an exec is killed, a container
/// goes on.
#[derive(Debug)]
pub struct AttachSender(Sends);

/// Receives from a process, as fast as it is asked and no faster.
#[derive(Debug)]
pub struct AttachReceiver(Receives);

#[derive(Debug)]
enum Sends {
    /// On a connection of its own, which ends with the halves.
    Alone(StreamSender<AttachInput>),
    Shared(Arc<Shared>),
}

#[derive(Debug)]
enum Receives {
    Alone(StreamReceiver<AttachOutput>),
    Shared(Arc<Shared>),
}

/// A flow-controlled stream on a connection that others use too.
#[derive(Debug)]
struct Shared {
    client: Client,
    stream: u32,
    flow: Arc<Flow>,
    /// Cancels the stream when both halves are gone.
    _lease: Lease,
}

/// Opens a stream that has its connection for itself. Its receiver holds the connection when it does not read.
pub(super) async fn open_alone(
    client: &Client,
    method: &str,
    first: What,
) -> Result<(AttachSender, AttachReceiver), CallError> {
    let (sender, receiver) = client.stream(shim_service::NAME, method).await?;
    sender.send(&AttachInput::from(first)).await?;
    Ok((AttachSender(Sends::Alone(sender)), AttachReceiver(Receives::Alone(receiver))))
}

/// Opens a flow-controlled stream.
pub(super) async fn open_shared(
    client: &Client,
    method: &str,
    first: What,
) -> Result<(AttachSender, AttachReceiver), CallError> {
    let (flow, window) = Flow::new();
    let flow = Arc::new(flow);
    let opened = client.stream_into(shim_service::NAME, method, Arc::<Flow>::clone(&flow)).await?;
    let stream = opened.stream;
    let shared = Arc::new(Shared { client: client.clone(), stream, flow, _lease: opened.lease });
    client.send(stream, &AttachInput { what: Some(first), window }).await?;
    let sender = AttachSender(Sends::Shared(Arc::clone(&shared)));
    Ok((sender, AttachReceiver(Receives::Shared(shared))))
}

impl AttachSender {
    /// Sends a message. Input waits until the process has taken most of what was sent before it. What is sent to a process that
    /// has ended is dropped: the receiver has its end.
    ///
    /// When it is cancelled, some of the input may have been sent.
    ///
    /// # Errors
    /// When the connection is lost, or the message does not fit.
    pub async fn send(&self, message: &AttachInput) -> Result<(), CallError> {
        match &self.0 {
            Sends::Alone(sender) => sender.send(message).await,
            Sends::Shared(shared) => match &message.what {
                Some(What::Stdin(bytes)) => shared.input(bytes).await,
                Some(what) => shared.client.send(shared.stream, &AttachInput::from(what.clone())).await,
                None => Ok(()),
            },
        }
    }
}

impl AttachReceiver {
    /// The next message; `None` after the last. Cancel safe.
    ///
    /// # Errors
    /// See [`CallError`]. Nothing follows an error.
    pub async fn recv(&mut self) -> Result<Option<AttachOutput>, CallError> {
        match &mut self.0 {
            Receives::Alone(receiver) => receiver.recv().await,
            Receives::Shared(shared) => shared.recv().await,
        }
    }
}

impl Shared {
    async fn input(&self, bytes: &[u8]) -> Result<(), CallError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if !self.flow.writable().await {
                return Ok(());
            }
            // No credit is taken before there is a place for what it is for.
            let place = self.client.reserve().await?;
            let granted = self.flow.take_credit(rest.len().min(PIECE_BYTES_MAX));
            let (piece, behind) = rest.split_at_checked(granted).unwrap_or((rest, &[]));
            if !piece.is_empty() {
                let message = AttachInput::from(What::Stdin(piece.to_vec()));
                place.send(self.stream, || Some(message.encode_to_vec()));
            }
            rest = behind;
        }
        Ok(())
    }

    async fn recv(&self) -> Result<Option<AttachOutput>, CallError> {
        loop {
            if let Some(what) = self.flow.next()? {
                if self.flow.owes()
                    && let Some(place) = self.client.try_reserve()
                {
                    place.send(self.stream, || self.grant());
                }
                return Ok(Some(AttachOutput::from(what)));
            }
            if self.flow.is_over() {
                return Ok(None);
            }
            // What could not be granted at once is granted before anything is waited for.
            if self.flow.owes() {
                self.client.reserve().await?.send(self.stream, || self.grant());
            }
            self.flow.readable().await;
        }
    }

    /// What the application has made room for, as a message.
    fn grant(&self) -> Option<Vec<u8>> {
        let window = self.flow.grant()?;
        Some(AttachInput { what: None, window }.encode_to_vec())
    }
}
