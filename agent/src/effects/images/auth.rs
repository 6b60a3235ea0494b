//! Credentials for one pull: containerd asks for them on a stream, and is told them for the image's own registry and
//! for the hosts that the settings of that registry name.

use berth_core::failure::Failure;
use containerd_client::{
    to_any,
    types::transfer::{AuthRequest, AuthResponse, AuthType},
};
use prost::Message;
use prost_types::Any;
use tokio::{sync::mpsc, task::JoinHandle};
use tonic::Streaming;

use super::stream::{self, Stream};
use crate::{objects::Credential, runtime::Containerd};

/// Where images of `docker.io` are (containerd `core/remotes/docker` `DefaultHost`).
const DOCKER: (&str, &str) = ("docker.io", "registry-1.docker.io");

/// A stream on which containerd is answered until this is dropped.
#[derive(Debug)]
pub(super) struct AuthStream(JoinHandle<()>);

impl Drop for AuthStream {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Opens a stream; containerd knows it by the id that is returned with it. The hosts are those that stand for the registry.
pub(super) async fn open(
    containerd: &Containerd,
    repository: &str,
    mut hosts: Vec<String>,
    credential: Credential,
) -> Result<(String, AuthStream), Failure> {
    let act = "open a stream for credentials of";
    let Stream { id, ours, theirs } = stream::open(containerd, "berth-auth", act, repository).await?;
    hosts.push(registry_of(repository).to_owned());
    Ok((id, AuthStream(tokio::spawn(answer(theirs, ours, hosts, credential)))))
}

fn registry_of(repository: &str) -> &str {
    let domain = repository.split('/').next().unwrap_or_default();
    if domain == DOCKER.0 { DOCKER.1 } else { domain }
}

async fn answer(
    mut theirs: Streaming<Any>,
    ours: mpsc::Sender<Any>,
    hosts: Vec<String>,
    credential: Credential,
) {
    while let Ok(Some(question)) = theirs.message().await {
        let Ok(asked) = AuthRequest::decode(question.value.as_slice()) else { return };
        if ours.send(to_any(&told(&asked.host, &hosts, &credential))).await.is_err() {
            return;
        }
    }
}

/// Where a registry sends to is another's: it is told nothing.
fn told(asked: &str, hosts: &[String], credential: &Credential) -> AuthResponse {
    let mut answer = AuthResponse::default();
    if hosts.iter().any(|host| host == asked) {
        answer.set_auth_type(AuthType::Credentials);
        answer.username = credential.username.to_string();
        answer.secret = credential.password.to_string();
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_of_a_repository() {
        for (repository, expected) in [
            ("docker.io/library/busybox", "registry-1.docker.io"),
            ("127.0.0.1:5000/web", "127.0.0.1:5000"),
            ("registry.k8s.io/pause", "registry.k8s.io"),
        ] {
            assert_eq!(registry_of(repository), expected);
        }
    }

    #[test]
    fn cve_2020_15157_only_the_registry_itself_is_told_an_account() {
        let credential = Credential {
            username: "u".to_owned().into(),
            password: "p".to_owned().into(),
            ..Credential::default()
        };
        let hosts = ["alias.test:5000", "registry.test"].map(str::to_owned);
        for (asked, expected) in [
            ("registry.test", ("u", "p")),
            ("alias.test:5000", ("u", "p")),
            ("alias.test", ("", "")),
            ("cdn.test", ("", "")),
        ] {
            let answer = told(asked, &hosts, &credential);
            assert_eq!((answer.username.as_str(), answer.secret.as_str()), expected, "{asked}");
        }
    }
}
