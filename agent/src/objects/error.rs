//! Why something of an object cannot be given. The words are the kubelet's, for people search for them.

/// Why something of an object cannot be given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// There is no API server to ask.
    #[error("{kind} {name:?} cannot be read: this node has no API server, start the agent with --kubeconfig")]
    NoCluster {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// It was not read in time: the API server does not answer, or does not let this node read it yet.
    #[error("failed to sync {kind} cache: timed out waiting for the condition")]
    NotRead {
        /// Kind of the object.
        kind: &'static str,
    },
    /// There is none.
    #[error("{kind} {name:?} not found")]
    NotFound {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A key of a ConfigMap that a volume shows.
    #[error("configmap references non-existent config key: {key}")]
    NoConfigKey {
        /// The key.
        key: String,
    },
    /// A key of a Secret that a volume shows.
    #[error("references non-existent secret key: {key}")]
    NoSecretKey {
        /// The key.
        key: String,
    },
    /// A key that a variable is to show.
    #[error("couldn't find key {key} in {kind} {object}")]
    NoKey {
        /// The key.
        key: String,
        /// Kind of the object, as a person writes it.
        kind: &'static str,
        /// Namespace and name of the object.
        object: String,
    },
    /// Services were not read in time.
    #[error("services have not yet been read at least once, cannot construct envvars")]
    NoServices,
    /// RuntimeClasses were not read in time, or there is none of that name.
    #[error("runtimeclass.node.k8s.io {name:?} not found")]
    NoRuntimeClass {
        /// The name.
        name: String,
    },
    /// A token.
    #[error("failed to fetch token: {why}")]
    Token {
        /// What the API server said.
        why: String,
    },
    /// What is known of the pod.
    #[error(transparent)]
    Downward(#[from] berth_core::derived::downward::DownwardError),
    /// More than a volume of this kind can have.
    #[error("the content of the volume is larger than {max} bytes")]
    TooLarge {
        /// The bound.
        max: usize,
    },
    /// More than a container can begin with.
    #[error(
        "what objects and services give the environment is larger than {max} bytes, of which each variable takes {each} \
         beside its name and value"
    )]
    EnvironmentTooLarge {
        /// The bound.
        max: usize,
        /// What each variable counts beside its text.
        each: usize,
    },
    /// Several at once.
    #[error("[{}]", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Several(Vec<ObjectError>),
}

impl ObjectError {
    /// All of them as one, each told once (`k8s.io/apimachinery/pkg/util/errors` `NewAggregate`).
    pub(super) fn all(errors: Vec<Self>) -> Result<(), Self> {
        let mut told: Vec<Self> = Vec::new();
        for error in errors {
            if !told.contains(&error) {
                told.push(error);
            }
        }
        match (told.pop(), told.is_empty()) {
            (None, _) => Ok(()),
            (Some(error), true) => Err(error),
            (Some(last), false) => {
                told.push(last);
                Err(Self::Several(told))
            }
        }
    }
}
