//! A session with a process over WebSocket.
//!
//! Source: `k8s.io/cri-streaming` `remotecommand/websocket.go`; version 5: `k8s.io/apiserver` `pkg/util/proxy/websocket.go`.

use berth_stream::{
    remote_command::{Channel, Options, Sizes, Version},
    web_socket::{Codec, RemoteCommand},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};
use tokio_tungstenite::tungstenite::Error;

use super::{
    channels::{self, Reader, Said, Writer},
    session::{Carrier, Input, Output, PIECE_MAX},
};

/// Carries a session to its end.
pub(super) async fn carry<T: AsyncRead + AsyncWrite + Unpin>(
    io: T,
    protocol: RemoteCommand,
    options: Options,
    carrier: Carrier,
) {
    let Carrier { ready, input, output } = carrier;
    let RemoteCommand { version, codec, .. } = protocol;
    let (mut reader, mut writer) = channels::over(io).await;
    let writing = async {
        writer.send(codec, options.greeted().number(), &[]).await?;
        // Fails only when the session is over.
        let _is_held = ready.send(());
        write(&mut writer, codec, version, output).await?;
        writer.close().await
    };
    tokio::select! {
        biased;
        () = read(&mut reader, codec, options, &input) => return channels::part(reader, writer).await,
        written = writing => if written.is_err() { return },
    }
    reader.farewell().await;
}

async fn write<T: AsyncRead + AsyncWrite + Unpin>(
    writer: &mut Writer<T>,
    codec: Codec,
    version: Version,
    mut output: mpsc::Receiver<Output>,
) -> Result<(), Error> {
    while let Some(told) = output.recv().await {
        let (channel, bytes) = match told {
            Output::Stdout(bytes) => (Channel::Stdout, bytes),
            Output::Stderr(bytes) => (Channel::Stderr, bytes),
            Output::End(outcome) => (Channel::Error, outcome.last_word(version).into()),
        };
        if !bytes.is_empty() {
            writer.send(codec, channel.number(), &bytes).await?;
        }
    }
    Ok(())
}

/// Passes on what the client says, until it has gone or is not understood.
async fn read<T: AsyncRead + AsyncWrite + Unpin>(
    reader: &mut Reader<T>,
    codec: Codec,
    options: Options,
    input: &mpsc::Sender<Input>,
) {
    let (mut sizes, mut is_open) = (Sizes::default(), options.stdin);
    while let Some(said) = reader.said(codec).await {
        let (channel, bytes) = match said {
            Said::Data(channel, bytes) => (RemoteCommand::input(channel), Some(bytes)),
            Said::Closed(channel) => (RemoteCommand::input(channel), None),
        };
        match (channel, bytes) {
            (Some(Channel::Stdin), Some(mut bytes)) if is_open => {
                while !bytes.is_empty() {
                    let piece = bytes.split_to(bytes.len().min(PIECE_MAX));
                    // Fails only when the session is over.
                    let _is_held = input.send(Input::Stdin(piece)).await;
                }
            }
            (Some(Channel::Stdin), None) if is_open => {
                is_open = false;
                let _is_held = input.send(Input::StdinEnd).await;
            }
            (Some(Channel::Resize), Some(bytes)) => {
                if let Some(size) = sizes.feed(&bytes) {
                    let _is_held = input.send(Input::Resize(size)).await;
                }
            }
            _ => {}
        }
    }
}
