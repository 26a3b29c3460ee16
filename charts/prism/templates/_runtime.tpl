{{/*
The `spec` of a runtime: (list . "gpu" .Values.runtimes.gpu).

KServe replaces {{.Name}} by the InferenceService's name in the containers, and nowhere else. It puts every declared
port of the container into the Service, so the admin port is not declared: no Service must expose it.
*/}}
{{- define "prism.runtime" -}}
{{- $ := index . 0 }}
{{- $name := index . 1 }}
{{- $runtime := index . 2 }}
{{- $service := "{{.Name}}" }}
{{- $tag := eq $name "cpu" | ternary (printf "%s-cpu" $.Chart.AppVersion) $.Chart.AppVersion -}}
annotations:
  prometheus.kserve.io/port: "8080"
  prometheus.kserve.io/path: /metrics
labels:
  serving.prism.dev/runtime: "true"
supportedModelFormats:
  {{- range list "huggingface" "vllm" }}
  - name: {{ . }}
    version: "1"
    autoSelect: {{ $runtime.autoSelect }}
    priority: {{ include "prism.text" $runtime.priority }}
  {{- end }}
protocolVersions: [v2, v1]
{{- with $.Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with $runtime.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $runtime.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $runtime.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: kserve-container
    image: {{ include "prism.image" (list $runtime.image $tag) }}
    imagePullPolicy: {{ $runtime.image.pullPolicy }}
    args:
      - --model_name={{ $service }}
      - --prism-config=/etc/prism/settings/{{ $service }}.yaml
      - --admin-port=8090
      - --step-timeout={{ include "prism.text" $runtime.stepTimeoutSeconds }}
      - --drain-delay={{ include "prism.text" $runtime.drainDelaySeconds }}
      - --grace-period={{ include "prism.gracePeriod" (list $name $runtime) }}
      {{- with include "prism.engineArgs" $runtime.engineArgs | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- range $runtime.extraArgs }}
      - {{ toJson . }}
      {{- end }}
    env:
      {{- include "prism.podEnv" $ | nindent 6 }}
      {{- include "prism.cacheEnv" $ | nindent 6 }}
      {{- with include "prism.otlpEnv" (list $ (list (printf "prism.inference_service=%s" $service))) | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- with $runtime.extraEnv }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    ports:
      - {name: http1, containerPort: 8080, protocol: TCP}
    {{- include "prism.probes" $runtime | nindent 4 }}
    securityContext: {{- include "prism.containerSecurity" $ | nindent 6 }}
    resources: {{- toYaml $runtime.resources | nindent 6 }}
    volumeMounts:
      - {name: prism-settings, mountPath: /etc/prism/settings, readOnly: true}
      - {name: tmp, mountPath: /tmp}
      - {name: shared-memory, mountPath: /dev/shm}
      {{- range $cache := keys $runtime.caches | sortAlpha }}
      - {name: {{ $cache }}-cache, mountPath: /cache/{{ $cache }}}
      {{- end }}
volumes:
  # The operator writes a service's settings into one of eight ConfigMaps, chosen by the service's name.
  - name: prism-settings
    projected:
      sources:
        {{- range until 8 }}
        - configMap: {name: prism-settings-{{ . }}, optional: true}
        {{- end }}
  - name: tmp
    emptyDir: {}
  - name: shared-memory
    emptyDir: {medium: Memory, sizeLimit: {{ $runtime.sharedMemory }}}
  {{- range $cache := keys $runtime.caches | sortAlpha }}
  - name: {{ $cache }}-cache
    {{- toYaml (get $runtime.caches $cache) | nindent 4 }}
  {{- end }}
{{- end }}

{{/* Everything that vLLM and what it stands on would write below a home folder. */}}
{{- define "prism.cacheEnv" -}}
- {name: HOME, value: /tmp}
- {name: HF_HOME, value: /cache/huggingface}
- {name: VLLM_CACHE_ROOT, value: /cache/vllm}
- {name: VLLM_CONFIG_ROOT, value: /cache/vllm/config}
- {name: XDG_CACHE_HOME, value: /cache/compile}
- {name: TRITON_CACHE_DIR, value: /cache/compile/triton}
- {name: TORCHINDUCTOR_CACHE_DIR, value: /cache/compile/torchinductor}
- {name: CUDA_CACHE_PATH, value: /cache/compile/cuda}
- {name: FLASHINFER_WORKSPACE_BASE, value: /cache/compile}
- {name: NUMBA_CACHE_DIR, value: /cache/compile/numba}
{{- end }}

{{/* Seconds from SIGTERM to the process's end: what the pod has, with 5 s to spare. (list name runtime) */}}
{{- define "prism.gracePeriod" -}}
{{- $name := index . 0 }}
{{- $runtime := index . 1 }}
{{- $seconds := sub (int $runtime.terminationGracePeriodSeconds) 5 }}
{{- if le $seconds (int $runtime.drainDelaySeconds) }}
{{- fail (printf "runtimes.%s.terminationGracePeriodSeconds must be more than 5 s above drainDelaySeconds" $name) }}
{{- end }}
{{- $seconds }}
{{- end }}

{{/* PRISM answers them with the engine's truth: it judges heartbeats itself, so the kubelet need not be patient. */}}
{{- define "prism.probes" -}}
startupProbe:
  httpGet: {path: /v2/health/ready, port: 8080}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ divf .startupSeconds 5 | ceil | int }}
readinessProbe:
  httpGet: {path: /v2/health/ready, port: 8080}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /v2/health/live, port: 8080}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 3
{{- end }}
