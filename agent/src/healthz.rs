//! `/healthz` on a port of its own: kubeadm waits for it, and who watches the agent asks it. In plain HTTP, with nothing to be
//! learned from it. Source: `k8s.io/apiserver/pkg/server/healthz/healthz.go`, installed by `cmd/kubelet/app/server.go` with the
//! check `ping` alone.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use crate::causes::with_causes;

/// Between two tries to listen.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);
/// Connections at a time: further ones wait.
const CONNECTIONS_MAX: usize = 32;
/// How long a connection may be there: who asks twice asks anew.
const CONNECTION_WITHIN: Duration = Duration::from_secs(60);
/// How long a request may take to come.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);

/// Answers until the agent stops. An address that cannot be had is tried again.
pub async fn serve(address: SocketAddr) {
    let mut told = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                tracing::debug!(%address, "healthz is answered");
                accept(&listener).await;
            }
            Err(error) if !told => {
                tracing::warn!(error = with_causes(&error), %address, "listen for healthz; it is tried again");
                told = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(LISTEN_AGAIN).await;
    }
}

async fn accept(listener: &TcpListener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Nobody closes it.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((connection, _)) => {
                tokio::spawn(async move {
                    drop(tokio::time::timeout(CONNECTION_WITHIN, answer(connection)).await);
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!(error = with_causes(&error), "accept a connection for healthz");
                return;
            }
        }
    }
}

async fn answer(connection: TcpStream) {
    let service = service_fn(|request: Request<Incoming>| async move {
        Ok::<_, Infallible>(said(request.uri().path(), request.uri().query()))
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN);
    // Who breaks off has had the answer, or wants none.
    drop(server.serve_connection(TokioIo::new(connection), service).await);
}

fn said(path: &str, query: Option<&str>) -> Response<String> {
    let is_verbose =
        query.is_some_and(|query| query.split('&').any(|part| part.split('=').next() == Some("verbose")));
    let (status, text) = match path {
        "/healthz" if is_verbose => (StatusCode::OK, "[+]ping ok\nhealthz check passed\n"),
        "/healthz" | "/healthz/ping" => (StatusCode::OK, "ok"),
        _ => (StatusCode::NOT_FOUND, "404 page not found\n"),
    };
    let mut response = Response::new(text.to_owned());
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    let nosniff = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn it_says_ok_and_knows_nothing_else() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { accept(&listener).await });
        for (path, status, body) in [
            ("/healthz", "200 OK", "\r\n\r\nok"),
            ("/healthz/ping", "200 OK", "\r\n\r\nok"),
            ("/healthz?verbose", "200 OK", "[+]ping ok\nhealthz check passed\n"),
            ("/", "404 Not Found", "404 page not found\n"),
            ("/pods", "404 Not Found", "404 page not found\n"),
        ] {
            let mut connection = TcpStream::connect(address).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            connection.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            connection.read_to_string(&mut answer).await.unwrap();
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status}\r\n")) && answer.ends_with(body),
                "{answer}"
            );
        }
    }
}
