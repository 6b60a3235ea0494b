//! Connections: those of the node, and one to the API server for each of its requests.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING};
use hyper::service::service_fn;
use hyper::{Request, Response, Version, client};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::sleep;

use super::answer::{self, Body};
use super::request::Verb;
use super::{Asked, Fault, Shared};

/// Serves until it is to end.
pub(super) async fn run(shared: Arc<Shared>, listener: TcpListener, mut ends: watch::Receiver<bool>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    tokio::spawn(connection(Arc::clone(&shared), stream));
                }
            }
            // It also ends when nobody can tell it any more. What was spawned ends with the runtime.
            _ = ends.changed() => return,
        }
    }
}

async fn connection(shared: Arc<Shared>, stream: TcpStream) {
    // The node sees its connections fail; what there is to know of it is in its log.
    drop(stream.set_nodelay(true));
    let Ok(stream) = shared.identity.serves.accept(stream).await else { return };
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(request_of(shared, request).await) }
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    drop(builder.serve_connection(TokioIo::new(stream), service).await);
}

async fn request_of(shared: Arc<Shared>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let verb = Verb::of(request.method(), &path, &query);
    let from = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
    let version = from.unwrap_or_default().to_owned();
    let (fault, mut other_rules) = shared.ask(Asked { at: Instant::now(), verb, path: path.clone(), query });
    match &fault {
        Some(Fault::Delay(delay)) => sleep(*delay).await,
        // It fails only when there is nobody to set any.
        Some(Fault::Held) => drop(other_rules.changed().await),
        Some(Fault::Refuse(code, retry_after)) => return answer::refusal(*code, *retry_after),
        Some(Fault::Stale(list)) => return answer::stale(verb, list),
        Some(Fault::Endless) => return answer::endless(),
        Some(Fault::Reset(_) | Fault::Ends(..)) | None => {}
    }
    let mut answered = match ask(&shared, request).await {
        Ok(answered) => answered,
        Err(failure) => return answer::unavailable(&failure),
    };
    for header in [CONNECTION, TRANSFER_ENCODING] {
        answered.headers_mut().remove(header);
    }
    let is_stream = verb.is_stream() && answered.status().is_success();
    match fault {
        Some(Fault::Reset(bytes)) => {
            answered.headers_mut().remove(CONTENT_LENGTH);
            answered.map(|body| answer::reset(body, bytes))
        }
        fault if is_stream => {
            let end = match fault {
                Some(Fault::Ends(events, lines)) => Some((events, lines)),
                _ => None,
            };
            let told = shared.watch(verb, &path);
            answered.map(|body| answer::lines(body, told, version, end))
        }
        _ => answered.map(answer::same),
    }
}

/// Asks the API server as the node.
async fn ask(shared: &Shared, mut request: Request<Incoming>) -> Result<Response<Incoming>> {
    let identity = &shared.identity;
    let stream = TcpStream::connect(identity.server).await?;
    stream.set_nodelay(true)?;
    let stream = identity.asks.connect(identity.server_name.clone(), stream).await?;
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move { drop(connection.await) });
    let path = request.uri().path_and_query().context("a request without path")?.as_str().parse()?;
    *request.uri_mut() = path;
    *request.version_mut() = Version::HTTP_11;
    request.headers_mut().insert(HOST, HeaderValue::from_str(&identity.server.to_string())?);
    let mut answered = sender.send_request(request).await?;
    *answered.version_mut() = Version::default();
    Ok(answered)
}
