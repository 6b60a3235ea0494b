//! The agent's end.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::Path,
    sync::Arc,
    time::Duration,
};

use berth_core::{config::Paths, id::PodName};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    exec, forward,
    object::{Overview, PodObject},
    protocol::{Answer, Envelope, Frame, FrameError, FrameKind, PIECE_MAX, Request, VERSION},
    stalled,
};
use crate::{
    causes::with_causes,
    runtime::{Shims, Specs},
    view::View,
    workers::Workers,
};

/// Connections at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 64;

/// A client that has connected says at once what it wants.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a failed accept: out of descriptors is not mended by asking again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is served.
#[derive(Debug)]
pub struct Service<R> {
    /// The pods.
    pub view: View,
    /// Where shims and logs are.
    pub paths: Paths,
    /// The pods' shims.
    pub shims: Shims,
    /// The runtime.
    pub runtime: R,
    /// What hangs.
    pub workers: Workers,
}

/// Makes the socket, mode 0600. One that an earlier run left is replaced.
///
/// # Errors
/// When its directory is not there, something else than a socket is in its place, or an agent is listening.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "something that is no socket is in its place",
            ));
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another berth is running"));
        }
        Ok(_) => fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(path)?;
    // Between bind and here the umask decides, and after that the peer's credentials do.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Answers until cancelled, then ends every connection.
pub async fn serve<R: Specs>(listener: UnixListener, service: Arc<Service<R>>, cancel: CancellationToken) {
    let (slots, tasks) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), TaskTracker::new());
    let accepting = async {
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "control connection not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (service, cancel) = (Arc::clone(&service), cancel.clone());
            tasks.spawn(async move {
                let _slot = slot;
                tokio::select! {
                    result = connection(stream, &service) => if let Err(error) = result {
                        tracing::debug!(error = with_causes(&error), "control connection ended badly");
                    },
                    () = cancel.cancelled() => {}
                }
            });
        }
    };
    tokio::select! {
        () = accepting => {}
        () = cancel.cancelled() => {}
    }
    tasks.close();
    tasks.wait().await;
}

async fn connection<R: Specs>(mut stream: UnixStream, service: &Service<R>) -> Result<(), FrameError> {
    let peer = stream.peer_cred()?.uid();
    if peer != 0 && peer != nix::unistd::geteuid().as_raw() {
        tracing::warn!(uid = peer, "control connection of a user who may not");
        let message = "only root may use this socket".to_owned();
        return Frame::message(&Answer::Failed { message })?.write(&mut stream).await;
    }
    let request = timeout(REQUEST_TIMEOUT, Frame::read(&mut stream, PIECE_MAX)).await;
    let frame = match request {
        Ok(Ok(Some(frame))) => frame,
        Ok(Ok(None)) => return Ok(()),
        Ok(Err(error)) => return refuse(&mut stream, &error).await,
        Err(_elapsed) => return Ok(()),
    };
    let envelope = match frame.parse::<Envelope>() {
        Ok(envelope) if frame.kind == FrameKind::Message => envelope,
        Ok(_) => return Ok(()),
        Err(error) => return refuse(&mut stream, &error).await,
    };
    if envelope.version != VERSION {
        let message =
            format!("this agent speaks version {VERSION} of the protocol, not {}", envelope.version);
        return Frame::message(&Answer::Failed { message })?.write(&mut stream).await;
    }
    let answer = match envelope.request {
        Request::Pods => {
            Answer::Pods(Box::new(Overview::of(&service.view, &service.paths, &service.workers)))
        }
        Request::Pod { namespace, name } => {
            match service.view.pod(&PodName { namespace, name: name.clone() }) {
                Some(pod) => {
                    let stalled_logs = stalled::logs(&pod, &service.paths).await;
                    let object = PodObject::of(&pod, &service.paths, &service.workers);
                    Answer::Pod(Box::new(PodObject { stalled_logs, ..object }))
                }
                None => Answer::NotFound { message: format!("pod `{name}` is not on this node") },
            }
        }
        Request::Exec(request) => exec::run(&mut stream, service, &request).await?,
        Request::Attach(request) => exec::attach(&mut stream, service, &request).await?,
        Request::PortForward { namespace, name, port } => {
            let pod = service.view.pod(&PodName { namespace, name: name.clone() });
            return forward::run(stream, pod, &name, port).await;
        }
    };
    Frame::message(&answer)?.write(&mut stream).await
}

async fn refuse(stream: &mut UnixStream, error: &FrameError) -> Result<(), FrameError> {
    Frame::message(&Answer::Failed { message: with_causes(error) })?.write(stream).await
}
