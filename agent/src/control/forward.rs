//! A connection to a port of a pod.

use tokio::{io::copy_bidirectional, net::UnixStream, sync::Semaphore};

use super::protocol::{Answer, Frame, FrameError};
use crate::{causes::with_causes, pod_port::Ports, view::PodView};

/// Connections to ports at once: half of those that the socket has, so that there are always some for questions.
const FORWARDED_MAX: usize = 32;

static PLACES: Semaphore = Semaphore::const_new(FORWARDED_MAX);

/// Connects to the port, says so, and passes bytes on. The end of one direction is passed on, and the other goes on.
pub(super) async fn run(
    mut stream: UnixStream,
    pod: Option<PodView>,
    name: &str,
    port: u16,
) -> Result<(), FrameError> {
    let Some(view) = pod else {
        let message = format!("pod `{name}` is not on this node");
        return Frame::message(&Answer::NotFound { message })?.write(&mut stream).await;
    };
    let Some(sandbox) = &view.sandbox else {
        let message = format!("pod `{name}` has no sandbox");
        return Frame::message(&Answer::NotFound { message })?.write(&mut stream).await;
    };
    let Ok(_place) = PLACES.try_acquire() else {
        let message = format!(
            "{FORWARDED_MAX} connections are forwarded, which are as many as may be: end one of them"
        );
        return Frame::message(&Answer::Failed { message })?.write(&mut stream).await;
    };
    match Ports::of(view.pod.network, sandbox).connect(port).await {
        Ok(mut socket) => {
            Frame::message(&Answer::Forwarded)?.write(&mut stream).await?;
            copy_bidirectional(&mut stream, &mut socket).await?;
            Ok(())
        }
        Err(error) => {
            let message = with_causes(&error);
            Frame::message(&Answer::Failed { message })?.write(&mut stream).await
        }
    }
}
