//! A session with a process, whichever protocol carries it.
//!
//! ```text
//!   client ─▶ carrier (SPDY or WebSocket) ─▶ Input  ─▶ pump ─▶ shim
//!   client ◀─ carrier                     ◀─ Output ◀─ pump ◀─ shim
//! ```
//!
//! Both queues are short, so a process waits for a client that does not read, and a client for a process that does not, and
//! neither makes anybody else wait. The client's end ends the session, and the process is left.

use berth_stream::remote_command::{Outcome, STREAM_CREATION_TIMEOUT, TerminalSize};
use hyper::body::Bytes;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::pump::{self, Process};

/// Pieces that wait in each direction.
const QUEUE: usize = 4;

/// Largest piece of a stream.
pub(super) const PIECE_MAX: usize = 32 << 10;

/// What a client says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    /// Standard input.
    Stdin(Bytes),
    /// Its end.
    StdinEnd,
    /// The size of its terminal.
    Resize(TerminalSize),
}

/// What a client is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Output {
    /// Standard output.
    Stdout(Bytes),
    /// Standard error.
    Stderr(Bytes),
    /// The last of all.
    End(Outcome),
}

/// A carrier's end of a session. It says first that all streams are there; it ends with the client, or when it has carried
/// everything there is.
#[derive(Debug)]
pub(super) struct Carrier {
    /// To be used when the client can be spoken with.
    pub(super) ready: oneshot::Sender<()>,
    /// What the client says.
    pub(super) input: mpsc::Sender<Input>,
    /// What to tell it.
    pub(super) output: mpsc::Receiver<Output>,
}

/// The other end.
#[derive(Debug)]
pub(super) struct Session {
    ready: oneshot::Receiver<()>,
    input: mpsc::Receiver<Input>,
    output: mpsc::Sender<Output>,
}

/// A session and its carrier.
pub(super) fn session() -> (Session, Carrier) {
    let (is_ready, ready) = oneshot::channel();
    let (to_process, input) = mpsc::channel(QUEUE);
    let (output, to_client) = mpsc::channel(QUEUE);
    let carrier = Carrier { ready: is_ready, input: to_process, output: to_client };
    (Session { ready, input, output }, carrier)
}

impl Session {
    /// Holds the session: begins the process when the client's streams are there, and tells at last how it ended. The carrier's end is
    /// the session's; where the streams do not come in time, it is dropped, and its connection closed.
    pub(super) async fn hold(
        self,
        carried: impl Future<Output = ()>,
        begin: impl Future<Output = Result<Process, Outcome>>,
    ) {
        let mut carried = std::pin::pin!(carried);
        tokio::select! {
            biased;
            () = &mut carried => return,
            began = self.talk(begin) => if !began {
                return;
            },
        }
        carried.await;
    }

    /// Whether it began, and has ended.
    async fn talk(self, begin: impl Future<Output = Result<Process, Outcome>>) -> bool {
        let Self { ready, mut input, output } = self;
        if !matches!(timeout(STREAM_CREATION_TIMEOUT, ready).await, Ok(Ok(()))) {
            tracing::debug!("timed out waiting for client to create streams");
            return false;
        }
        let word = match begin.await {
            Ok(process) => pump::run(process, &mut input, &output).await,
            Err(word) => word,
        };
        // Fails only when the client has gone, which ends the session in any case.
        drop(output.send(Output::End(word)).await);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures::future::poll_immediate;
    use tokio::time::{Instant, advance};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_session_whose_streams_do_not_come_is_over() {
        let (session, carrier) = session();
        let (connection, closed) = oneshot::channel::<()>();
        let carried = async move {
            let _held = (carrier, connection);
            pending::<()>().await;
        };
        let begun = Instant::now();
        session.hold(carried, async { panic!("begun without streams") }).await;
        assert_eq!(begun.elapsed(), STREAM_CREATION_TIMEOUT);
        assert!(closed.await.is_err(), "the connection is dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_has_begun_lasts_as_long_as_its_carrier() {
        let (session, Carrier { ready, input, mut output }) = session();
        let (leave, left) = oneshot::channel::<()>();
        let carried = async move {
            let _held = input;
            ready.send(()).unwrap();
            let told = output.recv().await;
            assert_eq!(told, Some(Output::End(Outcome::Success)));
            drop(left.await);
        };
        let mut held = std::pin::pin!(session.hold(carried, async { Err(Outcome::Success) }));
        assert!(poll_immediate(&mut held).await.is_none());
        advance(2 * STREAM_CREATION_TIMEOUT).await;
        assert!(poll_immediate(&mut held).await.is_none(), "the client reads what it was told");
        leave.send(()).unwrap();
        held.await;
    }
}
