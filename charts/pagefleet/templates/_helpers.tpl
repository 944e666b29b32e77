{{- /*
Values with every scalar that a template needs: what the user says, over the contract's defaults. So a section that is
null, or that an older release didn't have, never stops a rendering.
*/ -}}
{{- define "pagefleet.values" }}
{{- $values := include "pagefleet.fallbacks" . | fromYaml }}
{{- include "pagefleet.layOver" (dict "base" $values "over" .Values) }}
{{- if and (eq $values.settings.scope "Cluster") $values.settings.watchNamespaces }}
{{- fail "settings.scope is Cluster and settings.watchNamespaces names some; give one or the other" }}
{{- end }}
{{- $values | toYaml }}
{{- end }}

{{- /* Sprig's mergeOverwrite would also lay nulls over, and Helm leaves those in that its own defaults don't know. */ -}}
{{- define "pagefleet.layOver" }}
{{- $base := .base }}
{{- range $name, $value := .over }}
{{- $known := get $base $name }}
{{- if and (kindIs "map" $value) (kindIs "map" $known) }}
{{- include "pagefleet.layOver" (dict "base" $known "over" $value) }}
{{- else if not (kindIs "invalid" $value) }}
{{- $_ := set $base $name $value }}
{{- end }}
{{- end }}
{{- end }}

{{- define "pagefleet.fullname" }}
{{- $values := include "pagefleet.values" . | fromYaml }}
{{- $ours := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) }}
{{- $values.nameOverride | default $ours | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "pagefleet.selectorLabels" }}
{{- $names := include "pagefleet.names" . | fromYaml }}
{{- $names.LABEL_NAME }}: {{ $names.NAME_VALUE }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{ $names.LABEL_COMPONENT }}: {{ $names.COMPONENT_OPERATOR }}
{{- end }}

{{- define "pagefleet.labels" }}
{{- $values := include "pagefleet.values" . | fromYaml }}
{{- include "pagefleet.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with $values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "pagefleet.serviceAccount" }}
{{- $values := include "pagefleet.values" . | fromYaml }}
{{- $values.serviceAccount.name | default (include "pagefleet.fullname" .) }}
{{- end }}

{{- define "pagefleet.rootKeySecret" }}
{{- $values := include "pagefleet.values" . | fromYaml }}
{{- $values.rootKey.secretName | default (printf "%s-root-key" (include "pagefleet.fullname" .)) }}
{{- end }}

{{- /* The namespaces that roles are made in, as a YAML list; none where the operator looks after all of them. */ -}}
{{- define "pagefleet.watchedNamespaces" }}
{{- $values := include "pagefleet.values" . | fromYaml }}
{{- if eq $values.settings.scope "Cluster" }}
{{- list | toYaml }}
{{- else }}
{{- $values.settings.watchNamespaces | default (list .Release.Namespace) | toYaml }}
{{- end }}
{{- end }}

{{- /* What every container of the chart is denied. */ -}}
{{- define "pagefleet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "pagefleet.podSecurity" -}}
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "pagefleet.pullSecrets" }}
{{- range . }}
- name: {{ . | quote }}
{{- end }}
{{- end }}
