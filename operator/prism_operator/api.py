"""The one module that talks to the API server, through the official client, in plain JSON.

What the operator's role must allow, in every namespace it serves:

| group | resource | verbs |
|---|---|---|
| serving.prism.dev | prismconfigs | list, watch |
| serving.prism.dev | prismconfigs/status | patch |
| serving.kserve.io | inferenceservices, servingruntimes, and in cluster mode clusterservingruntimes | list, watch |
| | pods | list, watch; with --nudge-pods also patch |
| | configmaps | list, watch; create, patch, delete on prism-settings-0 to -7 |
| networking.k8s.io | networkpolicies | list, watch; create, patch, delete on prism-admin |
| policy | poddisruptionbudgets | list, watch, create, patch, delete |
| events.k8s.io | events | create |

and in the release's namespace prismconfigs and prismconfigs/status as above, events, and coordination.k8s.io leases:
create, and get and update on the one of --lease-name. The schema that is served is read from the API server's OpenAPI
documents, which every service account may read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from prism.errors import DeploymentError
from prism_operator.errors import api_error
from prism_operator.metrics import API_REQUESTS
from prism_operator.names import FIELD_MANAGER, GROUP, VERSION
from prism_operator.objects import Json

CALL_SECONDS: Final = 15.0
CONNECT_SECONDS: Final = 5.0
PAGE: Final = 500

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind, as the API server's paths spell it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of the collection, of an object, or of a part of it."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        tail = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}{scope}/{self.plural}{tail}"


CONFIGS = Resource(GROUP, VERSION, "prismconfigs", "PrismConfig")
SERVICES = Resource("serving.kserve.io", "v1beta1", "inferenceservices", "InferenceService")
RUNTIMES = Resource("serving.kserve.io", "v1alpha1", "servingruntimes", "ServingRuntime")
CLUSTER_RUNTIMES = Resource(
    "serving.kserve.io", "v1alpha1", "clusterservingruntimes", "ClusterServingRuntime", namespaced=False
)
PODS = Resource("", "v1", "pods", "Pod")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")


class Api:
    """Calls of one API server. Thread-safe. Every method raises `ApiError` and its kin."""

    def __init__(self, configuration: client.Configuration) -> None:
        self._client = client.ApiClient(configuration)

    def list(self, resource: Resource, namespace: str = "", selector: str = "") -> tuple[Iterator[Json], str]:
        """All objects, page after page, and the version from which a watch goes on."""
        first = self._page(resource, namespace, selector, "")
        return self._items(resource, namespace, selector, first), str(first["metadata"].get("resourceVersion", ""))

    def watch(
        self, resource: Resource, namespace: str, selector: str, version: str, *, lasts_s: float, silence_s: float
    ) -> Iterator[Json]:
        """Changes since `version`: `{"type", "object"}`, types as the API server sends them, ERROR and BOOKMARK too.

        Ends when the server ends it, about `lasts_s` from now.

        Raises:
            Unavailable: nothing was heard for `silence_s`, though the server sends a bookmark every minute.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(int(lasts_s)),
            "labelSelector": selector,
        }
        response = self._send("watch", resource, resource.path(namespace), "GET", query, timeout=silence_s)
        try:
            yield from _lines(response)
        except urllib3.exceptions.HTTPError as error:
            raise api_error(f"watch {resource.plural}", 0, str(error)) from error
        finally:
            response.close()
            response.release_conn()

    def get(self, resource: Resource, namespace: str, name: str) -> Json:
        return self._call("get", resource, resource.path(namespace, name), "GET")

    def create(self, resource: Resource, namespace: str, body: Json) -> Json:
        return self._call("create", resource, resource.path(namespace), "POST", body=body)

    def replace(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        """Puts the object in place of the one whose version it names; `Outdated` if that is not the current one."""
        return self._call("update", resource, resource.path(namespace, name), "PUT", body=body)

    def apply(self, resource: Resource, body: Json, subresource: str = "") -> Json:
        """Server-side apply: these fields are the operator's, whoever set them before."""
        path = resource.path(body["metadata"].get("namespace", ""), body["metadata"]["name"], subresource)
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return self._call("apply", resource, path, "PATCH", query, body=body, content_type=_APPLY)

    def merge(self, resource: Resource, namespace: str, name: str, patch: Json) -> Json:
        """Sets the fields of `patch`, removes those that are null there, and leaves all others."""
        path, query = resource.path(namespace, name), {"fieldManager": FIELD_MANAGER}
        return self._call("patch", resource, path, "PATCH", query, body=patch, content_type=_MERGE)

    def delete(self, resource: Resource, namespace: str, name: str) -> None:
        self._call("delete", resource, resource.path(namespace, name), "DELETE")

    def served_schema(self, resource: Resource) -> Json:
        """The schema that the API server checks objects of the kind by."""
        path = f"/openapi/v3/apis/{resource.group}/{resource.version}"
        schemas = self._call("get", resource, path, "GET").get("components", {}).get("schemas", {})
        kind = [{"group": resource.group, "version": resource.version, "kind": resource.kind}]
        found = (schema for schema in schemas.values() if schema.get("x-kubernetes-group-version-kind") == kind)
        return next(found, {})

    def _page(self, resource: Resource, namespace: str, selector: str, token: str) -> Json:
        query = {"limit": str(PAGE), "continue": token, "labelSelector": selector}
        return self._call("list", resource, resource.path(namespace), "GET", query)

    def _items(self, resource: Resource, namespace: str, selector: str, page: Json) -> Iterator[Json]:
        while True:
            yield from page.get("items") or ()
            token = page["metadata"].get("continue")
            if not token:
                return
            page = self._page(resource, namespace, selector, token)

    def _call(
        self,
        verb: str,
        resource: Resource,
        path: str,
        method: str,
        query: dict[str, str] | None = None,
        *,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        response = self._send(verb, resource, path, method, query, body=body, content_type=content_type)
        try:
            answer: Json = json.loads(response.data)
        except (ValueError, urllib3.exceptions.HTTPError) as error:
            raise api_error(f"{verb} {path}", 0, str(error)) from error
        return answer

    def _send(
        self,
        verb: str,
        resource: Resource,
        path: str,
        method: str,
        query: dict[str, str] | None = None,
        *,
        body: Json | None = None,
        content_type: str = "application/json",
        timeout: float = CALL_SECONDS,
    ) -> Any:
        """urllib3's response, unread, of a call that succeeded."""
        headers = {"Accept": "application/json", "Content-Type": content_type}
        given = [(key, value) for key, value in (query or {}).items() if value]
        status = 0
        try:
            asked = self._client.param_serialize(
                method, path, query_params=given, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            response = self._client.call_api(*asked, _request_timeout=(CONNECT_SECONDS, timeout)).response
            status = response.status
            if status >= 300:
                raise api_error(f"{verb} {path}", status, response.data)
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            raise api_error(f"{verb} {path}", 0, str(error)) from error
        finally:
            API_REQUESTS.labels(verb, resource.plural, str(status)).inc()
        return response


def connect(kubeconfig: str | None, context: str | None) -> Api:
    """The API server of the pod's service account, or of a kubeconfig file.

    Raises:
        DeploymentError: neither can be used.
    """
    configuration = client.Configuration()
    # Failures are repeated by the work queue and the reflectors, with back-off, and nowhere else.
    configuration.retries = False
    configuration.keep_alive = True
    configuration.connection_pool_maxsize = 32
    try:
        if kubeconfig is None and context is None:
            _load_own(configuration)
        else:
            config.load_kube_config(kubeconfig, context, client_configuration=configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        raise DeploymentError(f"No API server can be found: {error}. Name a file with --kubeconfig.") from error
    return Api(configuration)


def _load_own(configuration: client.Configuration) -> None:
    try:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException:
        config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]


def _lines(response: Any) -> Iterator[Json]:
    """One JSON object for each line, as they arrive."""
    rest = b""
    for chunk in response.stream(amt=None, decode_content=False):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (json.loads(line) for line in whole if line.strip())


def now_rfc3339(seconds: float | None = None) -> str:
    """The time, or `seconds` since 1970, as metadata spells it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
