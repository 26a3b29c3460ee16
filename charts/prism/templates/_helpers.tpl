{{/* The chart's name in its objects' names. */}}
{{- define "prism.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* The prefix of its objects' names: the release's name, with the chart's where it is not part of it already. */}}
{{- define "prism.fullname" -}}
{{- $name := include "prism.name" . }}
{{- $made := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) }}
{{- .Values.fullnameOverride | default $made | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Name of the operator's objects. */}}
{{- define "prism.operator" -}}
{{ include "prism.fullname" . }}-operator
{{- end }}

{{/* Name of the objects with which hooks set things up. */}}
{{- define "prism.setup" -}}
{{ include "prism.fullname" . }}-setup
{{- end }}

{{/* Name of what `helm test` runs, and of the PrismConfig that it applies. */}}
{{- define "prism.test" -}}
{{ include "prism.fullname" . }}-test
{{- end }}

{{- define "prism.serviceAccount" -}}
{{ .Values.operator.serviceAccount.name | default (include "prism.operator" .) }}
{{- end }}

{{/* Labels that select the pods of one component: (list . "operator"). */}}
{{- define "prism.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: {{ include "prism.name" $ }}
app.kubernetes.io/instance: {{ $.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* All labels of an object of one component: (list . "operator"). */}}
{{- define "prism.labels" -}}
{{- $ := index . 0 -}}
{{ include "prism.selector" . }}
app.kubernetes.io/part-of: prism
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_" }}
{{- with $.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* An image's reference: (list image defaultTag). */}}
{{- define "prism.image" -}}
{{- $image := index . 0 -}}
{{ printf "%s:%s" $image.repository ($image.tag | default (index . 1)) | quote }}
{{- end }}

{{/* The operator's image and when it is pulled. */}}
{{- define "prism.operatorImage" -}}
image: {{ include "prism.image" (list .Values.operator.image .Chart.AppVersion) }}
imagePullPolicy: {{ .Values.operator.image.pullPolicy }}
{{- end }}

{{/* The namespaces that the operator serves, as a JSON list; empty for all of them. */}}
{{- define "prism.namespaces" -}}
{{- if .Values.rbac.clusterScoped }}
{{- if .Values.rbac.namespaces }}
{{- fail "rbac.namespaces names namespaces, but rbac.clusterScoped is true, which serves all: set one of the two" }}
{{- end }}
{{- list | toJson }}
{{- else }}
{{- .Values.rbac.namespaces | default (list .Release.Namespace) | uniq | toJson }}
{{- end }}
{{- end }}

{{/* A scalar as text. Helm reads all numbers of a values file as floating point, and would print 1048576 as 1.048576e+06. */}}
{{- define "prism.text" -}}
{{- if not (kindIs "float64" .) }}{{ . }}
{{- else if eq . (floor .) }}{{ printf "%.0f" . }}
{{- else }}{{ toJson . }}
{{- end }}
{{- end }}

{{/* One value of an argument: a scalar as text, a list or a map as JSON. */}}
{{- define "prism.argument" -}}
{{- if or (kindIs "map" .) (kindIs "slice" .) }}{{ toRawJson . }}{{ else }}{{ include "prism.text" . }}{{ end }}
{{- end }}

{{/* A map of engine arguments as a list. Whatever is not null is kept: 0, false and empty lists too. */}}
{{- define "prism.engineArgs" -}}
{{- range $name, $value := . }}
{{- $flag := printf "--%s" $name }}
{{- if kindIs "bool" $value }}
- {{ ternary $flag (printf "--no-%s" $name) $value | toJson }}
{{- else if kindIs "slice" $value }}
- {{ toJson $flag }}
{{- range $value }}
- {{ include "prism.argument" . | toJson }}
{{- end }}
{{- else if not (kindIs "invalid" $value) }}
- {{ printf "%s=%s" $flag (include "prism.argument" $value) | toJson }}
{{- end }}
{{- end }}
{{- end }}

{{/* The OTLP protocol: the one that is set, or what the endpoint's port says. */}}
{{- define "prism.otlpProtocol" -}}
{{- .Values.otlp.protocol | default (regexMatch ":4317(/|$)" .Values.otlp.endpoint | ternary "grpc" "http/protobuf") }}
{{- end }}

{{/* Variables for OpenTelemetry; POD_NAME and POD_NAMESPACE stand before them. (list . "further=attributes") */}}
{{- define "prism.otlpEnv" -}}
{{- $ := index . 0 }}
{{- $attributes := append (index . 1) "k8s.namespace.name=$(POD_NAMESPACE),k8s.pod.name=$(POD_NAME)" | join "," }}
{{- with $.Values.otlp.endpoint -}}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
- name: OTEL_EXPORTER_OTLP_PROTOCOL
  value: {{ include "prism.otlpProtocol" $ }}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: {{ $attributes | quote }}
{{- end }}
{{- if not (kindIs "invalid" $.Values.otlp.samplingRatio) }}
- name: OTEL_TRACES_SAMPLER
  value: parentbased_traceidratio
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ include "prism.text" $.Values.otlp.samplingRatio | quote }}
{{- end }}
{{- with $.Values.otlp.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Who the pod is, by the downward API. */}}
{{- define "prism.podEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- end }}

{{/* What restricted pod security asks of a container, with a read-only root. */}}
{{- define "prism.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
privileged: false
readOnlyRootFilesystem: true
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* What restricted pod security asks of a pod. */}}
{{- define "prism.podSecurity" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* What the operator may do in each namespace that it serves. */}}
{{- define "prism.operatorRules" -}}
- apiGroups: [serving.prism.dev]
  resources: [prismconfigs]
  verbs: [list, watch]
- apiGroups: [serving.prism.dev]
  resources: [prismconfigs/status]
  verbs: [patch]
- apiGroups: [serving.kserve.io]
  resources: [inferenceservices, servingruntimes]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: {{ .Values.operator.nudgePods | ternary "[list, watch, patch]" "[list, watch]" }}
- apiGroups: [""]
  resources: [configmaps]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [configmaps]
  resourceNames:
    {{- range until 8 }}
    - prism-settings-{{ . }}
    {{- end }}
  verbs: [create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [list, watch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  resourceNames: [prism-admin]
  verbs: [create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end }}

{{/*
Who keeps the CRD: "" where the chart should not care, "release" where it is an ordinary object of this release, "job"
where it is already there and belongs to another release or to nobody, since Helm refuses to touch it then. A job of a
pre-install or pre-upgrade hook applies it in that case and makes it this release's own from the next upgrade on.
*/}}
{{- define "prism.crdKeeper" -}}
{{- if .Values.crds.install }}
{{- $there := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "prismconfigs.serving.prism.dev" | default dict }}
{{- $annotations := dig "metadata" "annotations" dict $there }}
{{- $ours := and (eq (get $annotations "meta.helm.sh/release-name") .Release.Name)
    (eq (get $annotations "meta.helm.sh/release-namespace") .Release.Namespace)
    (eq (dig "metadata" "labels" "app.kubernetes.io/managed-by" "" $there) "Helm") }}
{{- or (not $there) $ours | ternary "release" "job" }}
{{- end }}
{{- end }}

{{/* True where the CRD is an ordinary object of this release. */}}
{{- define "prism.crd.template" -}}
{{- if eq (include "prism.crdKeeper" .) "release" }}true{{ end }}
{{- end }}

{{/*
Annotations of a hook: (list "pre-install,pre-upgrade" weight). What it needs is made before it and goes with it. Newer
versions of Helm show what a failed one has written.
*/}}
{{- define "prism.hook" -}}
helm.sh/hook: {{ index . 0 }}
helm.sh/hook-weight: {{ index . 1 | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
helm.sh/hook-output-log-policy: hook-failed
{{- end }}

{{/*
The pod of a hook, which runs one command of the operator's image under a ServiceAccount:
(list . "account" "clean" (list "--argument")).
*/}}
{{- define "prism.setupPod" -}}
{{- $ := index . 0 -}}
serviceAccountName: {{ index . 1 }}
restartPolicy: Never
{{- with $.Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext: {{- include "prism.podSecurity" $ | nindent 2 }}
{{- with $.Values.operator.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $.Values.operator.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: {{ index . 2 }}
    {{- include "prism.operatorImage" $ | nindent 4 }}
    command: [python, -m, prism_operator.install]
    args:
      - {{ index . 2 }}
      {{- range index . 3 }}
      - {{ toJson . }}
      {{- end }}
    env: {{- include "prism.podEnv" $ | nindent 6 }}
    securityContext: {{- include "prism.containerSecurity" $ | nindent 6 }}
    resources:
      requests: {cpu: 50m, memory: 64Mi}
      limits: {memory: 256Mi}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
volumes:
  - name: tmp
    emptyDir: {}
{{- end }}
