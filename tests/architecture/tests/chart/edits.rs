//! Where the chart has places for values, in the text of `manifests/base` and of the components' objects. An
//! edit names the text that it replaces.

/// A text of a file in the base, how often it is there, and what the template has in its place.
pub(crate) struct Edit {
    pub(crate) file: &'static str,
    pub(crate) times: usize,
    pub(crate) find: &'static str,
    pub(crate) put: &'static str,
}

const fn edit(file: &'static str, find: &'static str, put: &'static str) -> Edit {
    Edit {
        file,
        times: 1,
        find,
        put,
    }
}

/// What the objects of components have places for.
pub(crate) const COMPONENT_EDITS: &[Edit] = &[
    edit(
        "cert-manager",
        "  # Your issuer.
  issuerRef:
    group: cert-manager.io
    kind: ClusterIssuer
    name: muster
",
        "  issuerRef: {{ toJson .Values.certManager.issuerRef }}\n",
    ),
    edit(
        "cert-manager",
        "  - localhost\n",
        "  - localhost
  {{- range .Values.coordinator.serverNames }}
  - {{ toJson . }}
  {{- end }}
",
    ),
    edit(
        "worker-pods",
        "# In all namespaces. A site that names them has a RoleBinding in each, and not this.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: muster-coordinator-pods
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: muster-coordinator-pods
subjects:
- kind: ServiceAccount
  name: muster-coordinator
  namespace: muster-system
",
        "{{- if not .Values.workerPods.namespaces }}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: muster-coordinator-pods
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: muster-coordinator-pods
subjects:
- kind: ServiceAccount
  name: muster-coordinator
  namespace: muster-system
{{- end }}
{{- range .Values.workerPods.namespaces }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  namespace: {{ toJson . }}
  name: muster-coordinator-pods
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: muster-coordinator-pods
subjects:
- kind: ServiceAccount
  name: muster-coordinator
  namespace: {{ toJson $.Release.Namespace }}
{{- end }}
",
    ),
];

/// The volume of the component `cert-manager`, if its value is true.
macro_rules! with_tls {
    ($above:literal) => {
        concat!(
            $above,
            "
      {{- if .Values.certManager.enabled }}
      - name: tls
        secret:
          secretName: muster-coordinator-tls
          # 0440. Readers of YAML differ about numbers that begin with 0.
          defaultMode: 288
      {{- end }}
"
        )
    };
}

pub(crate) const EDITS: &[Edit] = &[
    edit(
        "coordinator.yaml",
        "image: muster-coordinator\n",
        "image: {{ toJson .Values.images.coordinator }}\n",
    ),
    edit(
        "coordinator.yaml",
        "      enableServiceLinks: false
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        fsGroupChangePolicy: OnRootMismatch
        seccompProfile:
          type: RuntimeDefault
",
        concat!(
            "      enableServiceLinks: false
      {{- with .Values.imagePullSecrets }}
      imagePullSecrets: {{ toJson . }}
      {{- end }}
      {{- with .Values.coordinator.nodeSelector }}
      nodeSelector: {{ toJson . }}
      {{- end }}
      {{- with .Values.coordinator.tolerations }}
      tolerations: {{ toJson . }}
      {{- end }}
      {{- with .Values.coordinator.affinity }}
      affinity: {{ toJson . }}
      {{- end }}
      {{- if not .Values.coordinator.affinity }}
      {{- if .Values.twoCoordinators.enabled }}
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 100
            podAffinityTerm:
              topologyKey: kubernetes.io/hostname
              labelSelector:
                matchLabels:
                  app.kubernetes.io/name: muster-coordinator
      {{- end }}
      {{- end }}
      {{- with .Values.coordinator.priorityClassName }}
      priorityClassName: {{ toJson . }}
      {{- end }}
      securityContext: {{ toJson .Values.coordinator.podSecurityContext }}
",
            with_tls!("      {{- if not .Values.coordinator.storage.persistent }}
      volumes:
      - name: state
        emptyDir: {}"),
            "      {{- end }}
      {{- if .Values.coordinator.storage.persistent }}
",
            with_tls!("      {{- if .Values.twoCoordinators.enabled }}
      volumes:
      - name: state
        emptyDir: {}"),
            "      {{- end }}
      {{- if not .Values.twoCoordinators.enabled }}
      {{- if .Values.certManager.enabled }}
",
            with_tls!("      volumes:"),
            "      {{- end }}
      {{- end }}
      {{- end }}
"
        ),
    ),
    edit(
        "coordinator.yaml",
        "muster-coordinator,localhost\n",
        "muster-coordinator,localhost{{ range .Values.coordinator.serverNames }},{{ . }}{{ end }}
        {{- if .Values.adopt.enabled }}
        - --adopt=pytorchjobs
        {{- end }}
        {{- if .Values.cordon.enabled }}
        - --kubernetes-cordon={{ if .Values.cordon.dryRun }}dry-run{{ end }}{{ if not .Values.cordon.dryRun }}on{{ end }}
        {{- end }}
        {{- if .Values.kueue.enabled }}
        - --kubernetes-kueue
        {{- end }}
        {{- if .Values.metrics.enabled }}
        - --metrics-listen=0.0.0.0:7071
        {{- end }}
        {{- if .Values.podGroups.enabled }}
        - --kubernetes-pod-groups
        {{- end }}
        {{- if .Values.twoCoordinators.enabled }}
        - --store=kubernetes
        {{- end }}
        {{- if .Values.workerPods.enabled }}
        - --kubernetes-pods={{ .Release.Namespace }}/muster-agent
        {{- end }}
        {{- range .Values.coordinator.extraArgs }}
        - {{ toJson . }}
        {{- end }}
",
    ),
    edit(
        "coordinator.yaml",
        "          containerPort: 7070\n",
        "          containerPort: 7070
        {{- if .Values.metrics.enabled }}
        - name: metrics
          containerPort: 7071
        {{- end }}
",
    ),
    edit(
        "coordinator.yaml",
        "        env:\n",
        "        env:
        {{- if .Values.certManager.enabled }}
        - name: MUSTER_TLS_CERT_FILE
          value: /muster/tls/tls.crt
        - name: MUSTER_TLS_PRIVATE_KEY_FILE
          value: /muster/tls/tls.key
        - name: MUSTER_CA_FILE
          value: /muster/tls/ca.crt
        {{- end }}
",
    ),
    edit(
        "coordinator.yaml",
        "        volumeMounts:\n",
        "        volumeMounts:
        {{- if .Values.certManager.enabled }}
        - name: tls
          mountPath: /muster/tls
          readOnly: true
        {{- end }}
",
    ),
    edit(
        "coordinator.yaml",
        "          value: /var/lib/muster/coordinator\n",
        "          value: /var/lib/muster/coordinator
        {{- if .Values.twoCoordinators.enabled }}
        - name: MUSTER_POD_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        {{- end }}
        {{- range .Values.coordinator.env }}
        - {{ toJson . }}
        {{- end }}
",
    ),
    edit(
        "coordinator.yaml",
        "        resources:
          requests:
            cpu: 200m
            memory: 256Mi
          limits:
            memory: 2Gi
",
        "        resources: {{ toJson .Values.coordinator.resources }}\n",
    ),
    edit(
        "coordinator.yaml",
        "  volumeClaimTemplates:
  - metadata:
      name: state
    spec:
      accessModes: [ReadWriteOncePod]
      resources:
        requests:
          storage: 2Gi
",
        "  {{- if .Values.coordinator.storage.persistent }}
  {{- if not .Values.twoCoordinators.enabled }}
  volumeClaimTemplates:
  - metadata:
      name: state
    spec:
      accessModes: {{ toJson .Values.coordinator.storage.accessModes }}
      {{- with .Values.coordinator.storage.className }}
      storageClassName: {{ toJson . }}
      {{- end }}
      resources:
        requests:
          storage: {{ toJson .Values.coordinator.storage.size }}
  {{- end }}
  {{- end }}
",
    ),
    edit(
        "coordinator.yaml",
        "  replicas: 1\n",
        "  {{- if .Values.twoCoordinators.enabled }}
  replicas: 2
  {{- end }}
  {{- if not .Values.twoCoordinators.enabled }}
  replicas: 1
  {{- end }}
",
    ),
    edit(
        "coordinator.yaml",
        "    app.kubernetes.io/name: muster-coordinator
spec:
  selector:
    app.kubernetes.io/name: muster-coordinator
  ports:
",
        "    app.kubernetes.io/name: muster-coordinator
  {{- with .Values.service.annotations }}
  annotations: {{ toJson . }}
  {{- end }}
spec:
  {{- with .Values.service.type }}
  type: {{ toJson . }}
  {{- end }}
  selector:
    app.kubernetes.io/name: muster-coordinator
    {{- if .Values.twoCoordinators.enabled }}
    muster.dev/leader: \"true\"
    {{- end }}
  ports:
",
    ),
    Edit {
        times: 2,
        ..edit(
            "agent.yaml",
            "image: muster-agent\n",
            "image: {{ toJson .Values.images.agent }}\n",
        )
    },
    edit(
        "agent.yaml",
        "image: muster-workers\n",
        "image: {{ toJson .Values.images.workers }}\n",
    ),
    edit(
        "agent.yaml",
        "        kubectl.kubernetes.io/default-container: workers\n",
        "        {{- if .Values.sensesOnly.enabled }}
        kubectl.kubernetes.io/default-container: agent
        {{- end }}
        {{- if not .Values.sensesOnly.enabled }}
        kubectl.kubernetes.io/default-container: workers
        {{- end }}
",
    ),
    edit(
        "agent.yaml",
        "      initContainers:
      - name: install
",
        "      {{- if .Values.sensesOnly.enabled }}
      initContainers: []
      containers:
@containers@
      volumes:
@volumes@
      {{- end }}
      {{- if not .Values.sensesOnly.enabled }}
      initContainers:
      - name: install
",
    ),
    edit(
        "agent.yaml",
        "      maxUnavailable: 1\n",
        "      maxUnavailable: {{ toJson .Values.agent.maxUnavailable }}\n",
    ),
    edit(
        "agent.yaml",
        "      enableServiceLinks: false\n",
        "      enableServiceLinks: false
      {{- with .Values.imagePullSecrets }}
      imagePullSecrets: {{ toJson . }}
      {{- end }}
      {{- with .Values.agent.nodeSelector }}
      nodeSelector: {{ toJson . }}
      {{- end }}
      {{- with .Values.agent.runtimeClassName }}
      runtimeClassName: {{ toJson . }}
      {{- end }}
      {{- with .Values.agent.priorityClassName }}
      priorityClassName: {{ toJson . }}
      {{- end }}
      {{- if .Values.agent.hostNetwork }}
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      {{- end }}
",
    ),
    edit(
        "agent.yaml",
        "      - key: node.kubernetes.io/unreachable
        operator: Exists
        effect: NoExecute
",
        "      - key: node.kubernetes.io/unreachable
        operator: Exists
        effect: NoExecute
      {{- range .Values.agent.tolerations }}
      - {{ toJson . }}
      {{- end }}
",
    ),
    edit(
        "agent.yaml",
        "      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
",
        "      securityContext: {{ toJson .Values.agent.podSecurityContext }}\n",
    ),
    edit(
        "agent.yaml",
        "          value: utility\n",
        "          value: utility
        {{- range .Values.agent.env }}
        - {{ toJson . }}
        {{- end }}
",
    ),
    edit(
        "agent.yaml",
        "        resources:
          requests:
            cpu: 100m
            memory: 128Mi
          limits:
            memory: 512Mi
",
        "        resources: {{ toJson .Values.agent.resources }}\n",
    ),
    edit(
        "agent.yaml",
        "        command: [/muster/bin/muster-runner, pod, --dir, /muster/run]\n",
        "        command: [/muster/bin/muster-runner, pod, --dir, /muster/run]
        {{- with .Values.workers.env }}
        env: {{ toJson . }}
        {{- end }}
        {{- with .Values.workers.resources }}
        resources: {{ toJson . }}
        {{- end }}
",
    ),
    edit(
        "agent.yaml",
        "          mountPath: /dev/shm
      volumes:
",
        "          mountPath: /dev/shm
        {{- range .Values.workers.volumeMounts }}
        - {{ toJson . }}
        {{- end }}
      volumes:
",
    ),
    edit(
        "agent.yaml",
        "        configMap:
          name: muster-ca-bundle
",
        "        configMap:
          name: muster-ca-bundle
      {{- range .Values.workers.volumes }}
      - {{ toJson . }}
      {{- end }}
      {{- end }}
",
    ),
];
