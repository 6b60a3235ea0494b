//! The server's thread, and its ports.

use std::{future::pending, sync::Arc, time::Duration};

use berth_core::server::{Debugging, Endpoint, Places, ServerType};
use http::Request;
use hyper::body::Incoming;
use tokio::{runtime::Handle, sync::oneshot, time::sleep};
use tokio_rustls::{TlsAcceptor, rustls};
use tokio_util::sync::CancellationToken;

use super::{
    Requests, Response, Served,
    authenticate::{Authenticator, Tokens},
    authorize::{Access, Authorizer},
    client_ca::ClientCa,
    connection::{Port, TIMES},
    connections::Connections,
    dispatch::{Answers, Gate, Refusals},
    endpoints,
    lanes::WHOLE_READ_ONLY,
    listen,
    parts::Parts,
    review::Reviewer,
    tls::{self, Presenting},
};
use crate::{
    causes::with_causes,
    cluster::Clients,
    config::{AuthorizationSettings, ServerSettings},
    threads,
};

/// Threads for blocking calls at most: for files of logs, and lists that take long to write.
const BLOCKING_MAX: usize = 64;
/// Between two tries to have a thread, which the machine may have none left of.
const THREAD_AGAIN: Duration = Duration::from_secs(5);

/// Runs the server until the agent stops.
///
/// It has one thread with a runtime of its own. One is enough for what one node is asked, since what computes for long goes to threads for
/// blocking calls; and a runtime with several ends the agent where the machine has no thread left to give.
pub async fn run(
    served: Served,
    settings: ServerSettings,
    presenting: Presenting,
    cancel: CancellationToken,
) {
    let node = served.host.config.node.name.as_str().into();
    let asking = Asking { clients: served.clients.clone(), node, main: Handle::current() };
    let (requests, served) = (served.requests.clone(), Arc::new(served));
    loop {
        let (ended, end) = oneshot::channel::<()>();
        let (served, requests) = (Arc::clone(&served), requests.clone());
        let serving = serve(served, requests, asking.clone(), settings.clone(), presenting.clone());
        let cancelled = cancel.clone().cancelled_owned();
        let thread = std::thread::Builder::new().name("server".to_owned()).spawn(move || {
            // Told by being dropped, whatever becomes of the thread.
            let _ended = ended;
            let runtime = match threads::runtime("server-blocking", BLOCKING_MAX) {
                Ok(runtime) => runtime,
                Err(error) => {
                    return tracing::error!(error = with_causes(&error), "start the server's runtime");
                }
            };
            runtime.block_on(async {
                let _kept = threads::keep();
                tokio::select! {
                    () = cancelled => {}
                    () = serving => {}
                }
            });
            // Dropping it would wait for threads that are stuck in a call.
            runtime.shutdown_background();
        });
        if let Err(error) = thread {
            tracing::error!(error = with_causes(&error), "start the server's thread; it is tried again");
        } else {
            // Nobody sends anything: it ends with the thread.
            drop(end.await);
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = sleep(THREAD_AGAIN) => {}
        }
    }
}

/// Who is asked about those who ask.
#[derive(Debug, Clone)]
pub(super) struct Asking {
    /// The API server, where the node has one.
    pub(super) clients: Option<Clients>,
    /// The node's name.
    pub(super) node: Arc<str>,
    /// The runtime that has the connections of `clients`.
    pub(super) main: Handle,
}

/// Serves both ports.
pub(super) async fn serve<A: Answers + Clone>(
    answers: A,
    requests: Requests,
    asking: Asking,
    settings: ServerSettings,
    presenting: Presenting,
) {
    let asks = settings.authentication.client_ca.is_some();
    let made = tls::config(&settings.tls, presenting, asks).and_then(|config| {
        let (gate, following) = gate(&asking, &settings)?;
        Ok((TlsAcceptor::from(Arc::new(config)), gate, following))
    });
    let (acceptor, gate, following) = match made {
        Ok(made) => made,
        Err(error) => {
            tracing::error!(error = with_causes(&error), "the server cannot speak TLS");
            return pending().await;
        }
    };
    let port = main_port(answers.clone(), gate, settings.debugging, requests.clone());
    let listening = listen::keep(settings.listen, "the server", move |stream, peer| {
        port.take(stream, peer, Some(acceptor.clone()));
    });
    let read_only = async {
        let Some(address) = settings.read_only else { return pending().await };
        let port = read_only_port(answers, requests);
        listen::keep(address, "the read-only server", move |stream, peer| port.take(stream, peer, None))
            .await;
    };
    tokio::join!(listening, read_only, following);
}

/// The port of those who are let in.
pub(super) fn main_port<A>(answers: A, gate: Gate, debugging: Debugging, requests: Requests) -> Arc<Port<A>> {
    Arc::new(Port {
        answers,
        gate: Some(gate),
        debugging,
        server_type: ServerType::ReadWrite,
        requests,
        refusals: Refusals::default(),
        times: TIMES,
        connections: Connections::new(Places::SERVER),
        parts: Parts::default(),
    })
}

/// The read-only port: it asks nobody who they are, and has nothing for debugging, whatever the settings say.
pub(super) fn read_only_port<A>(answers: A, requests: Requests) -> Arc<Port<A>> {
    Arc::new(Port {
        answers,
        gate: None,
        debugging: Debugging::Off,
        server_type: ServerType::ReadOnly,
        requests,
        refusals: Refusals::default(),
        times: TIMES,
        connections: Connections::new(Places::READ_ONLY),
        parts: Parts::apart(WHOLE_READ_ONLY),
    })
}

/// Who may, and what keeps that up to date.
fn gate(
    asking: &Asking,
    settings: &ServerSettings,
) -> Result<(Gate, impl Future<Output = ()> + use<>), rustls::Error> {
    let reviewer = || asking.clients.clone().map(|clients| Reviewer::new(clients, asking.main.clone()));
    let authentication = &settings.authentication;
    let tokens = authentication.tokens.zip(reviewer()).map(|(keep, reviewer)| Tokens::new(reviewer, keep));
    let (client_ca, following) = authentication.client_ca.as_deref().map(ClientCa::of).unzip();
    let authorizer = match settings.authorization {
        AuthorizationSettings::AlwaysAllow => Authorizer::AlwaysAllow,
        AuthorizationSettings::Webhook { allowed, denied } => {
            let (node, kept) = (Arc::clone(&asking.node), super::authorize::Kept::default());
            Authorizer::Webhook(Access { reviewer: reviewer(), node, allowed, denied, kept })
        }
    };
    let authenticator =
        Authenticator { client_ca, tokens: tokens.transpose()?, anonymous: authentication.anonymous };
    let following = async move {
        match following {
            Some(following) => following.await,
            None => pending().await,
        }
    };
    Ok((Gate { authenticator, authorizer }, following))
}

impl Answers for Arc<Served> {
    async fn answer(&self, endpoint: Endpoint, request: Request<Incoming>) -> Response {
        endpoints::answer(self, endpoint, request).await
    }
}
